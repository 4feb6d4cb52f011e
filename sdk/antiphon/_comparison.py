"""Two requests of a conversation side by side: where the later one ceases to repeat the earlier. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from antiphon._difference import Difference, common, difference, excerpts, kind_of_text
from antiphon._divergence import Divergence, Kind
from antiphon._history import MARKS, History, Message, answers_of, history_of, normal, role_of

_IDENTITIES = (("model", Kind.MODEL), ("cache_salt", Kind.SALT))
_FRAMES = ("system", "instructions")
"""Texts that stand before the messages."""
_OPTIONS = (
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "reasoning",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)
_SPOKEN = frozenset({"assistant", "function_call", "reasoning", None})
"""Roles, and types of items, that may be the model's."""
_ANSWERED = frozenset({"arguments", "content", "function_call", "input", "reasoning", "tool_calls"})
"""Fields of an answer that templates render; replies have many more, and clients add some."""


def divergence_of(
    before: bytes,
    after: bytes,
    reply: bytes | None = None,
    *,
    differs: bool = False,
    intact: bool | None = None,
) -> Divergence | None:
    """The first difference that explains why ``after`` cannot reuse what ``before`` left; None: none shows.

    ``before``, ``after``: JSON bodies of two requests, one turn after the other. ``reply``: the body of the
    whole reply between them. ``differs``: the engines found other tokens, so that what does not show may be
    deduced. ``intact``: they found those of the earlier prompt unchanged to its end; None: not known.
    """
    try:
        old, new = history_of(before), history_of(after)
        if old is None or new is None or old.part != new.part:
            return None
        return next(_divergences(old, new, answers_of(reply), differs, intact), None)
    except RecursionError:
        return None


def _divergences(
    old: History, new: History, answers: list[list[Message]], differs: bool, intact: bool | None
) -> Iterator[Divergence]:
    """All that may explain it, the best explanation first."""
    for name, kind in _IDENTITIES:
        yield from _field(kind, name, old, new)
    yield from _tools(old, new)
    yield from _frames(old, new)
    if old.part == "prompt":
        yield from _prompts(old, new, answers, differs)
        return
    yield from _messages(old, new)
    yield from _answer(old, new, answers)
    for name in _OPTIONS:
        yield from _field(Kind.OPTIONS, name, old, new)
    if not intact:
        yield from _labels(old, new)
    place = len(old.messages)
    if place == len(new.messages):  # the same prompt again
        return
    came = new.messages[place]
    if any(answer[0].get("content") == "" for answer in answers) and came.get("content") is None:
        yield Divergence(Kind.NULLED, new.part, place, role_of(came), "content")
    if differs and (answers or intact is False):
        yield Divergence(Kind.RENDERED, new.part)
    elif differs:
        yield Divergence(Kind.ANSWER, new.part, place, role_of(came))


def _field(kind: Kind, name: str, old: History, new: History) -> Iterator[Divergence]:
    was, now = old.body.get(name), new.body.get(name)
    if was != now:
        yield Divergence(kind, name, None, None, "", *excerpts(was, now))


def _tools(old: History, new: History) -> Iterator[Divergence]:
    """Templates write them as JSON, so the order of fields counts too."""
    was, now = (_listed(history.body.get("tools")) for history in (old, new))
    texts, others = [json.dumps(tool) for tool in was], [json.dumps(tool) for tool in now]
    if texts != others:
        ordered, also = (sorted(json.dumps(tool, sort_keys=True) for tool in tools) for tools in (was, now))
        kind = Kind.TOOLS_REORDERED if ordered == also else Kind.TOOLS
        at = common(texts, others)
        yield Divergence(kind, "tools", None, None, "", *excerpts("".join(texts[at:]), "".join(others[at:])))


def _listed(tools: Any) -> list[Any]:
    return [_unmarked(tool) for tool in tools] if isinstance(tools, list) else []


def _unmarked(tool: Any) -> Any:
    return {k: v for k, v in tool.items() if k not in MARKS} if isinstance(tool, dict) else tool


def _frames(old: History, new: History) -> Iterator[Divergence]:
    for name in _FRAMES:
        was, now = (normal({"content": history.body.get(name)}) for history in (old, new))
        if was != now:
            found = difference(was, now)
            path = found.path.removeprefix("content")
            yield _located(found._replace(path=path.lstrip(".")), name, None, "system")


def _prompts(old: History, new: History, answers: list[list[Message]], differs: bool) -> Iterator[Divergence]:
    """Of the completions API: texts, or lists of token ids."""
    was, now = old.messages[0]["content"], new.messages[0]["content"]
    if type(was) is not type(now):
        return
    if now[: len(was)] != was:
        kind = Kind.REMOVED if was[: len(now)] == now else Kind.EDITED
        if kind is Kind.EDITED and isinstance(was, str):
            kind = kind_of_text(was, now)
        yield Divergence(kind, "prompt", None, None, "", *excerpts(was, now))
        return
    grown = now[len(was) :]
    if not grown:
        return
    texts = [answer[0].get("content") for answer in answers] if isinstance(was, str) else []
    told = [text for text in texts if isinstance(text, str)]
    if told and not any(grown.startswith(text) for text in told):
        resent = grown[: len(told[0])]
        kind = kind_of_text(told[0], resent)
        yield Divergence(kind, "prompt", None, "assistant", "", *excerpts(told[0], resent))
    elif differs and not told:
        yield Divergence(Kind.ANSWER, "prompt")


def _messages(old: History, new: History) -> Iterator[Divergence]:
    """The first message that was sent before and does not come again in its place."""
    was, now = ([normal(message) for message in history.messages] for history in (old, new))
    first = common(was, now)
    if first == len(was):
        return
    gone = old.messages[first]
    if first == len(now):
        yield _whole(Kind.REMOVED, old.part, first, role_of(gone), gone)
        return
    came = new.messages[first]
    here, there = _meeting(was, now, first)
    if here == there and (here > first or role_of(gone) == role_of(came)):
        yield _located(difference(was[first], now[first]), new.part, first, role_of(came))
    elif here < there:
        yield _whole(Kind.INSERTED, new.part, first, role_of(came), gone, came)
    elif there == first < here and was[first] in now[first:]:
        yield _whole(Kind.REORDERED, new.part, first, role_of(came), gone, came)
    else:
        kind = Kind.REASONING if role_of(gone) == "reasoning" else Kind.REMOVED
        yield _whole(kind, old.part, first, role_of(gone), gone, came)


def _meeting(was: Sequence[Message], now: Sequence[Message], first: int) -> tuple[int, int]:
    """Where both go on together: places in ``was`` and ``now``; ``first`` twice if they never do."""
    places: dict[str, list[int]] = {}
    for place in range(first, len(was)):
        places.setdefault(json.dumps(was[place], sort_keys=True), []).append(place)
    for there in range(first, len(now)):
        if found := places.get(json.dumps(now[there], sort_keys=True)):
            return min(found, key=lambda place: abs(place - there)), there
    return first, first


def _answer(old: History, new: History, answers: list[list[Message]]) -> Iterator[Divergence]:
    """How the reply that came between the requests was sent back."""
    place = len(old.messages)
    came = new.messages[place:]
    if not came:
        return
    if role_of(came[0]) not in _SPOKEN:
        yield _whole(Kind.REMOVED, new.part, place, "assistant", answers[0][0] if answers else {}, came[0])
        return
    found = [_resent(answer, came, new.part, place) for answer in answers]
    if found and found[0] is not None and None not in found:
        yield found[0]


def _resent(answer: Sequence[Message], came: Sequence[Message], part: str, place: int) -> Divergence | None:
    """The first difference between a reply's messages and those sent."""
    for index, (said, sent) in enumerate(zip(answer, came, strict=False), place):
        if role_of(said) == "reasoning" and role_of(sent) != "reasoning":
            return _whole(Kind.REASONING, part, index, "reasoning", said, sent)
        was, now = (
            {name: value for name, value in normal(message).items() if name in _ANSWERED}
            for message in (said, sent)
        )
        if was != now:
            return _located(difference(was, now), part, index, role_of(sent))
    return None


def _labels(old: History, new: History) -> Iterator[Divergence]:
    """Differences that most templates do not render."""
    for index, (was, now) in enumerate(zip(old.messages, new.messages, strict=False)):
        if was.get("content") == "" and now.get("content") is None:
            yield Divergence(Kind.NULLED, new.part, index, role_of(now), "content")
        labelled, also = normal(was, MARKS), normal(now, MARKS)
        if labelled != also:
            found = difference(labelled, also)._replace(kind=Kind.FIELD)
            yield _located(found, new.part, index, role_of(now))


def _located(found: Difference, part: str, index: int | None, role: str | None) -> Divergence:
    return Divergence(found.kind, part, index, role, found.path, *excerpts(found.before, found.after))


def _whole(
    kind: Kind, part: str, index: int, role: str | None, gone: Message, came: Message | None = None
) -> Divergence:
    said = excerpts(gone.get("content"), (came or {}).get("content"))
    return Divergence(kind, part, index, role, "", *said)
