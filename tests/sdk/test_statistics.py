from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import antiphon
from antiphon import Statistics, _conversation, _observe, _statistics
from antiphon._divergence import Kind
from antiphon._observe import Exchange, observe
from antiphon._outcome import HEADER
from antiphon._statistics import Registry

ASK: Any = {"role": "user", "content": "Name the letters."}
LONG: Any = {"role": "assistant", "content": "a b c"}
SECRET = "the secret of the shelf"


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    monkeypatch.setattr(_conversation, "registry", registry)
    monkeypatch.setattr(_observe, "registry", registry)
    return registry


def said(path: str = "reuse", matched: int = 0, reason: str = "full", **tokens: int) -> dict[str, str]:
    numbers = "".join(f"; {name}={value}" for name, value in tokens.items())
    return {HEADER: f"path={path}; matched={matched}; reason={reason}{numbers}"}


def exchange(headers: dict[str, str], turn: str | None = None, messages: Any = None, **more: Any) -> Exchange:
    request = None if messages is None else json.dumps({"model": "m", "messages": messages}).encode()
    return Exchange(turn, headers, **{"request": request, **more})


def speak(name: str, *exchanges: Exchange) -> Statistics:
    conversation = antiphon.conversation(name)
    for each in exchanges:
        observe(conversation, each)
    return conversation.statistics


def collapsing(messages: Any, before: Any = None, reason: str = "cut") -> list[Exchange]:
    """Two turns; the second one matched 300 of 2000 tokens that decode held."""
    return [
        exchange(said("cold", 0, "first", prompt=1800), messages=before or [ASK]),
        exchange(said("reuse", 300, reason, prompt=2400, held=2000), messages=messages),
    ]


EDITED = [{**ASK, "content": SECRET}, LONG, ASK]


def test_turns_are_counted_by_path_and_tokens_are_summed() -> None:
    found = speak(
        "c",
        exchange(said("cold", 0, "first", prompt=100)),
        exchange(said("reuse", 96, "full", prompt=200, held=120)),
        exchange(said("append", 190, "short", prompt=300, held=220), ttft=0.5),
        exchange(said("reuse", 32, "cut")),
        exchange({"content-type": "text/event-stream"}, ttft=0.25),
    )
    assert found.turns == 5
    assert found.paths == {"append": 1, "reuse": 2, "cold": 1, "unknown": 1}
    assert (found.prompt_tokens, found.matched_tokens) == (600, 318)
    assert found.reused == 286 / 600
    assert (found.last_path, found.last_reason, found.last_matched) == ("unknown", None, None)
    assert (found.ttfts, found.last_ttft, found.mean_ttft) == ((0.5, 0.25), 0.25, 0.375)


def test_last_turn_is_told_as_in_the_header() -> None:
    found = speak("c", exchange(said("reuse", 96, "cut", prompt=200, held=120)))
    assert (found.last_path, found.last_reason) == ("reuse", "cut")
    assert (found.last_matched, found.last_prompt, found.last_held) == (96, 200, 120)


def test_conversation_that_nobody_observed_has_empty_statistics() -> None:
    found = antiphon.conversation("c").statistics
    assert found == Statistics()
    assert (found.turns, sum(found.paths.values()), found.reused) == (0, 0, None)
    assert (found.last_ttft, found.mean_ttft, found.divergence) == (None, None, None)


def test_statistics_are_a_value_of_that_moment() -> None:
    conversation = antiphon.conversation("c")
    before = conversation.statistics
    observe(conversation, exchange(said()))
    assert (before.turns, conversation.statistics.turns) == (0, 1)
    assert pickle.loads(pickle.dumps(conversation.statistics)) == conversation.statistics


def test_equal_conversations_share_them_and_they_outlive_the_end() -> None:
    with antiphon.conversation("c") as conversation:
        observe(conversation, exchange(said()))
    assert antiphon.conversation("c").statistics.turns == 1
    assert antiphon.conversation("d").statistics.turns == 0


def test_turn_is_counted_once() -> None:
    turns = [exchange(said(), "1"), exchange(said(), "2"), exchange(said(), "1")]
    assert speak("c", *turns).turns == 2
    assert speak("d", exchange(said()), exchange(said())).turns == 2


@pytest.mark.parametrize(
    ("usage", "prompt"),
    [
        ({"prompt_tokens": 70, "completion_tokens": 5}, 70),
        ({"input_tokens": 60}, 60),
        ({"prompt_tokens": -1}, 0),
        ({"prompt_tokens": True}, 0),
        ([], 0),
        (None, 0),
    ],
)
def test_prompts_length_comes_from_the_usage_where_the_header_lacks_it(usage: Any, prompt: int) -> None:
    reply = json.dumps({"usage": usage}).encode()
    assert speak("c", exchange(said("cold", 0, "first"), reply=reply)).prompt_tokens == prompt
    told = exchange(said("cold", 0, "first", prompt=9), reply=reply)
    assert speak("d", told).prompt_tokens == 9


def test_large_reply_is_not_read_for_the_prompts_length() -> None:
    reply = json.dumps({"usage": {"prompt_tokens": 70}}).encode().ljust(_observe.MOST_READ_BYTES + 1)
    assert speak("c", exchange(said("cold"), reply=reply)).last_prompt is None
    assert speak("d", exchange(said("cold"), reply=reply[:-1])).last_prompt == 70


def test_collapse_is_warned_of_once_with_where_and_why(caplog: pytest.LogCaptureFixture) -> None:
    found = speak("c", *collapsing(EDITED), *collapsing(EDITED))
    assert found.divergence is not None
    assert found.divergence.kind is Kind.EDITED
    [record] = caplog.records
    assert (record.name, record.levelno) == ("antiphon", logging.WARNING)
    message = record.getMessage()
    assert "conversation c: only 300 of 2000 tokens could be reused. messages[0].content (user)" in message
    assert message.endswith("docs/why-reuse-drops.md")
    assert SECRET not in message


def test_history_sent_back_verbatim_is_never_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    turns = [
        exchange(said("reuse", 1792, "full", prompt=2000, held=1800), messages=[ASK, LONG, ASK]),
        exchange(said("reuse", 1984, "cut", prompt=2400, held=2100), messages=[ASK, LONG, ASK, LONG, ASK]),
        exchange(said("cold", 0, "expired", prompt=2900, held=2600), messages=EDITED),
        exchange(said("cold", 0, "busy", prompt=2900), messages=EDITED),
    ]
    assert speak("c", *collapsing([ASK])[:1], *turns).divergence is None
    assert caplog.records == []


def test_collapse_that_cannot_be_compared_is_warned_of_where_tokens_differ(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert speak("c", *collapsing(None)).divergence is None
    assert "only 300 of 2000 tokens could be reused. The last two requests are not at hand" in caplog.text


@pytest.mark.parametrize("reason", ["rewritten", "threshold", "first"])
def test_collapse_that_may_be_another_thing_is_warned_of_only_with_a_cause(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    speak("c", *collapsing(None, reason=reason))
    speak("d", *collapsing([ASK, LONG, ASK], reason=reason))
    assert caplog.records == []
    speak("e", *collapsing(EDITED, reason=reason))
    assert len(caplog.records) == (reason != "first")


def test_other_model_or_salt_explains_a_conversation_that_nobody_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, field in (("c", "model"), ("d", "cache_salt")):
        first, second = collapsing([ASK], reason="first")
        request = json.dumps({"messages": [ASK, LONG, ASK], "model": "m", field: "other"}).encode()
        found = speak(name, first, Exchange(None, second.headers, request))
        assert found.divergence is not None
        assert found.divergence.part == field
    assert len(caplog.records) == 2


def test_answers_length_counts_as_held_where_the_header_does_not_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reply = json.dumps(
        {"usage": {"completion_tokens": 900}, "choices": [{"message": {**LONG, "content": "abc"}}]}
    ).encode()
    before = exchange(said("cold", 0, "first", prompt=1800), messages=[ASK], reply=reply)
    after = exchange(said("reuse", 1792, "cut", prompt=3000), messages=[ASK, LONG, ASK])
    found = speak("c", before, after)
    assert found.divergence is not None
    assert found.divergence.where == "messages[1].content (assistant)"
    assert "only 1792 of 2700 tokens" in caplog.text


def test_one_cause_is_warned_of_for_ten_conversations(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(12):
        assert speak(str(number), *collapsing(EDITED)).divergence is not None
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 10
    assert ["is not said again" in message for message in messages] == [False] * 9 + [True]
    speak("other", *collapsing([ASK, LONG, ASK]))  # another cause
    assert len(caplog.records) == 11


def test_least_recent_conversation_is_forgotten(registry: Registry) -> None:
    names = [str(number) for number in range(_statistics.MOST_CONVERSATIONS)]
    for name in names:
        speak(name, exchange(said(), messages=[ASK]))
    speak("0", exchange(said(), messages=[ASK]))
    speak("new", exchange(said(), messages=[ASK]))
    assert antiphon.conversation("1").statistics.turns == 0
    assert antiphon.conversation("0").statistics.turns == 2
    assert len(registry._books) == len(registry._kept) == _statistics.MOST_CONVERSATIONS


def test_kept_requests_are_bounded_and_the_oldest_go_first(registry: Registry) -> None:
    size = _statistics.MOST_TURN_BYTES
    for number in range(9):
        speak(str(number), Exchange(None, said(), b"x" * (size - 1), b"y"))
    assert registry._kept_bytes == _statistics.MOST_KEPT_BYTES == 8 * size
    assert list(registry._kept) == [str(number) for number in range(1, 9)]
    speak("1", Exchange(None, said(), b"x" * 10))
    speak("2", Exchange(None, said(), b"x" * (size + 1)))
    speak("3", Exchange(None, said(), None))
    assert list(registry._kept) == ["4", "5", "6", "7", "8", "1"]
    assert registry._kept_bytes == sum(kept.size for kept in registry._kept.values()) == 5 * size + 10


def test_nothing_is_kept_of_calls_to_other_servers(registry: Registry) -> None:
    speak("c", Exchange(None, {}, b"{}", b"{}"))
    assert not registry._kept


def test_conversation_that_was_forgotten_meanwhile_is_not_warned_of(registry: Registry) -> None:
    assert registry.diverged("gone", None) == 0


def test_ttfts_and_turn_ids_are_bounded(registry: Registry) -> None:
    found = speak("c", *(exchange(said(), str(number), ttft=float(number)) for number in range(100)))
    assert found.ttfts == tuple(map(float, range(100 - _statistics.MOST_TTFTS, 100)))
    assert len(registry._books["c"].turn_ids) == _statistics.MOST_TURN_IDS


def test_threads_count_every_turn() -> None:
    conversation = antiphon.conversation("c")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def call(number: int) -> None:
        observe(conversation, exchange(said("reuse", 1, prompt=2), str(number), [ASK]))

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(call, range(2000)))
    finally:
        sys.setswitchinterval(interval)
    found = conversation.statistics
    assert (found.turns, found.paths["reuse"], found.matched_tokens, found.reused) == (2000, 2000, 2000, 0.5)


def test_observation_that_fails_costs_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_observe, "outcome_of", lambda headers: 1 // 0)
    with caplog.at_level(logging.DEBUG, "antiphon"):
        speak("c", exchange(said()))
    assert [record.message for record in caplog.records] == ["a call was not observed"]


def test_nothing_is_parsed_while_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a body was parsed")

    monkeypatch.setattr(json, "loads", parse)
    turns = [said("cold", 0, "first", prompt=100), said("reuse", 96, "full", prompt=200, held=120)]
    assert speak("c", *(Exchange(None, headers, b"{}", b"{}") for headers in turns)).turns == 2


WORDS = st.sampled_from(
    ["path=reuse", "reason=cut", "reason=first", "matched=3", "matched=x", "prompt=900", "held=800", "", "="]
)
HEADERS = st.dictionaries(
    st.sampled_from([HEADER, HEADER.upper()]) | st.text(),
    st.lists(WORDS | st.text(), max_size=6).map("; ".join),
    max_size=3,
)
BODIES = (
    st.none() | st.binary() | st.sampled_from([b"{}", b'{"messages": [{}]}', b"[" * 5000, b'{"usage": 1}'])
)


@given(
    st.lists(
        st.builds(
            Exchange,
            turn=st.none() | st.text(max_size=2),
            headers=HEADERS,
            request=BODIES,
            reply=BODIES,
            ttft=st.none() | st.floats(),
        ),
        max_size=4,
    )
)
def test_no_reply_is_too_strange(exchanges: list[Exchange]) -> None:
    for each in exchanges:
        _observe._observe("c", each)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_process_waits_for_no_thread_of_its_parent() -> None:
    program = """
import os, signal, threading
import antiphon
from antiphon._statistics import registry

held, done = threading.Event(), threading.Event()

def hold():
    with registry._lock:
        held.set()
        done.wait()

threading.Thread(target=hold).start()
held.wait()
if os.fork() == 0:
    signal.alarm(20)
    print(antiphon.conversation("c").statistics.turns, flush=True)
    os._exit(0)
os.wait()
done.set()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("0\n", "")


def test_forked_process_starts_anew(registry: Registry) -> None:
    conversation = antiphon.conversation("c")
    observe(conversation, exchange(said()))
    assert conversation.statistics.turns == 1
    registry._lock.acquire()
    registry.forked()
    assert conversation.statistics.turns == 0
