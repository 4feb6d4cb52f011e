"""The report and the summary: whole, and without a word of anybody."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from antiphon_server.advise.advice import Advice, Asked, advise
from antiphon_server.advise.answers import answers, seconds, tokens
from antiphon_server.advise.hardware import Given
from antiphon_server.advise.page import page
from antiphon_server.advise.summary import show
from antiphon_server.advise.verdict import Verdict
from antiphon_server.traces.trace import Call, Conversation, Trace
from doubles.traffic import growing, timed, traffic

SECRET = "Frau Meier's diagnosis"


def _with_words() -> Trace:
    """Text, names, models and paths, wherever a trace may have them."""
    conversations = []
    for number in range(12):
        history = [{"role": "user", "content": SECRET + " word" * 4000}]
        calls: list[Call] = []
        for _ in range(6):
            calls.append(
                Call(
                    4000,
                    30,
                    at=len(calls) * 20.0,
                    seconds=3.0,
                    gap=17.0 if calls else None,
                    model=SECRET,
                    history=tuple(history),
                    reply={"role": "assistant", "content": SECRET},
                    path="cold",
                    reason="first",
                )
            )
            history += [{"role": "assistant", "content": SECRET}, {"role": "user", "content": SECRET}]
        conversations.append(Conversation(f"{SECRET}-{number}", tuple(calls), parent=SECRET))
    notes = (f"2 of 9 records could not be read, first /home/{SECRET}/log.jsonl, line 3: {SECRET}",)
    return Trace("messages", tuple(conversations), notes=notes)


@pytest.fixture(scope="module")
def spoken() -> Advice:
    return advise(_with_words(), Asked(Given("qwen3-32b", "p5en")))


@pytest.fixture(scope="module")
def html(spoken: Advice) -> str:
    return page(spoken)


def _told(advice: Advice) -> str:
    console = Console(file=io.StringIO(), width=110)
    show(advice, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_no_word_of_a_prompt_and_no_name_is_told(spoken: Advice, html: str) -> None:
    for text in (html, _told(spoken), repr(spoken)):
        assert "Meier" not in text
        assert "diagnosis" not in text
        assert "secret" not in text
    assert spoken.source.notes == ("2 of 9 records could not be read",)


def test_what_a_log_says_of_itself_is_no_markup() -> None:
    trace = traffic(growing(5), notes=("a <b>bold</b> note",))
    text = page(advise(trace, Asked(Given("qwen3-32b", "p5en"))))
    assert "a &lt;b&gt;bold&lt;/b&gt; note" in text
    assert "<b>bold" not in text


class _Page(HTMLParser):
    """Tags that are open at the end, and all addresses."""

    EMPTY = frozenset({"meta", "path", "use", "rect", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [
            value for name, value in attrs if name in ("src", "href", "xlink:href", "action") and value
        ]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in self.EMPTY:
            return
        assert self.open.pop() == tag


def test_the_report_needs_nothing_else(html: str) -> None:
    parsed = _Page()
    parsed.feed(html)
    assert parsed.open == []
    assert {"script", "link", "img", "iframe"}.isdisjoint(parsed.tags)
    assert all(address.startswith("#") for address in parsed.addresses)
    assert "http:" not in html
    assert "https:" not in html
    assert "@import" not in html
    assert "url(" not in html.replace("url(#", "")
    assert len(html) < 400_000


def test_pictures_take_their_colours_from_the_page(html: str) -> None:
    assert html.count("<svg ") == html.count('role="img" aria-label="') >= 6
    drawn = "".join(re.findall(r"<svg .*?</svg>", html, re.DOTALL))
    assert "var(--blue)" in drawn
    assert not re.findall(r"#[0-9a-f]{6};", drawn)
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_ids_of_pictures_are_their_own(html: str) -> None:
    clips = re.findall(r'<clipPath id="([^"]+)"', html)
    assert len(clips) == len(set(clips))


def test_the_same_traffic_gives_the_same_report(html: str) -> None:
    assert page(advise(_with_words(), Asked(Given("qwen3-32b", "p5en")))) == html


def test_all_four_questions_are_answered_in_both(spoken: Advice, html: str) -> None:
    told = " ".join(_told(spoken).split())
    for answer in answers(spoken):
        assert answer.question.replace("'", "&#x27;") in html
        assert answer.question in told
        for sentence in answer.text:
            assert " ".join(sentence.split()) in told
            assert sentence.replace("'", "&#x27;") in html


@pytest.mark.parametrize(
    ("trace", "verdict"),
    [
        (traffic(*([growing(10, cached=0)] * 20)), Verdict.ON),
        (traffic(growing(10)), Verdict.CARE),
        (traffic(*([growing(1)] * 20)), Verdict.OFF),
        (traffic(growing(1)), Verdict.UNKNOWN),
        (traffic(*([growing(10, gap=None)] * 20)), Verdict.UNKNOWN),
        (traffic(*(timed(growing(3, cached=0), begin=float(i)) for i in range(60))), Verdict.ON),
    ],
)
def test_every_verdict_stands_first(trace: Trace, verdict: Verdict) -> None:
    found = advise(trace, Asked(Given("qwen3-32b", "p5en")))
    assert found.judgement.verdict is verdict
    assert verdict.capitalize() in _told(found).splitlines()[0]
    text = page(found)
    assert f'<div class="verdict {verdict.name.lower()}"><h1>{verdict.capitalize()}</h1>' in text
    assert ("paths: [cold]\n" in text) is (verdict is Verdict.OFF)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 ms"), (0.0421, "42 ms"), (1.04, "1.0 s"), (12.4, "12 s"), (5399, "5,399 s"), (7200, "2.0 h")],
)
def test_durations_are_short(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(7, "7"), (9999, "9,999"), (12_345, "12k"), (999_499, "999k"), (1_250_000, "1.2M"), (2.76e9, "2.8B")],
)
def test_tokens_are_short(value: float, text: str) -> None:
    assert tokens(value) == text


@pytest.mark.parametrize("clock", [False, True])
def test_where_data_do_not_suffice_nothing_is_sized(clock: bool) -> None:
    # Two of ten gaps are known, or there are few turns.
    rows = growing(3) if clock else (*growing(2), *(replace(c, gap=None) for c in growing(10)[2:]))
    trace = traffic(timed(rows)) if clock else traffic(*([rows] * 20))
    found = advise(trace, Asked(Given("qwen3-32b", "p5en")))
    assert found.judgement.verdict is Verdict.UNKNOWN
    assert found.retention.chosen.pinned > 0
    assert (found.fleet, found.crowd, found.settings.fleet) == (None, None, None)
    for text in (_told(found), page(found)):
        assert "pinned" not in text
        assert " pins " not in text
        assert "engines busy" not in text
        assert "room for" not in text
        assert "the log does not tell enough for another value" in " ".join(text.split())
    values = {setting.name: setting.value for setting in found.settings.router}
    assert (values["keep_share"], values["append_slowdown"]) == ("0.5", "1.25")
    assert values["keep"] == f"{found.retention.chosen.keep:.0f}"


def test_where_data_suffice_it_is_sized() -> None:
    found = advise(traffic(*([growing(10)] * 20)), Asked(Given("qwen3-32b", "p5en")))
    assert found.fleet is not None
    for text in (_told(found), page(found)):
        assert "pinned" in text
        assert "engines busy" in " ".join(text.split())


@pytest.mark.parametrize(
    ("value", "text"),
    [(5400.0, "1.5 h"), (172_799.0, "48.0 h"), (172_800.0, "2 days"), (8.64e8, "10,000 days")],
)
def test_long_durations_are_told_in_days(value: float, text: str) -> None:
    assert seconds(value) == text
