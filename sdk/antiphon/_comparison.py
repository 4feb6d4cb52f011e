"""Two requests of a conversation side by side: where the later one ceases to repeat the earlier. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from antiphon._difference import Difference, common, difference, excerpts, kind_of_text
from antiphon._divergence import Divergence, Kind
from antiphon._history import MARKS, History, Message, answers_of, history_of, normal, role_of

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
_INSTRUCTING = frozenset({"developer", "system"})
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
        return _divergence(old, new, answers_of(reply), differs, intact)
    except RecursionError:
        return None


def _divergence(
    old: History, new: History, answers: list[list[Message]], differs: bool, intact: bool | None
) -> Divergence | None:
    """The best explanation comes first."""
    framed = (
        _field(Kind.MODEL, "model", old, new)
        or _field(Kind.SALT, "cache_salt", old, new)
        or _tools(old, new)
        or _frames(old, new)
    )
    if framed or old.part == "prompt":
        return framed or _prompts(old, new, answers, differs)
    return (
        _messages(old, new)
        or _answer(old, new, answers)
        or next(filter(None, (_field(Kind.OPTIONS, name, old, new) for name in _OPTIONS)), None)
        or (None if intact else _labels(old, new))
        or _unseen(old, new, answers, differs, intact)
    )


def _field(kind: Kind, name: str, old: History, new: History) -> Divergence | None:
    was, now = old.body.get(name), new.body.get(name)
    return Divergence(kind, name, None, None, "", *excerpts(was, now)) if was != now else None


def _tools(old: History, new: History) -> Divergence | None:
    """Templates write them as JSON, so the order of fields counts too."""
    was, now = (_listed(history.body.get("tools")) for history in (old, new))
    texts, others = [json.dumps(tool) for tool in was], [json.dumps(tool) for tool in now]
    if texts == others:
        return None
    ordered, also = (sorted(json.dumps(tool, sort_keys=True) for tool in tools) for tools in (was, now))
    kind = Kind.TOOLS_REORDERED if ordered == also else Kind.TOOLS
    at = common(texts, others)
    return Divergence(kind, "tools", None, None, "", *excerpts("".join(texts[at:]), "".join(others[at:])))


def _listed(tools: Any) -> list[Any]:
    return [_unmarked(tool) for tool in tools] if isinstance(tools, list) else []


def _unmarked(tool: Any) -> Any:
    return {k: v for k, v in tool.items() if k not in MARKS} if isinstance(tool, dict) else tool


def _frames(old: History, new: History) -> Divergence | None:
    for name in _FRAMES:
        was, now = (normal({"content": history.body.get(name)}) for history in (old, new))
        if was != now:
            found = difference(was, now)
            path = found.path.removeprefix("content")
            return _located(found._replace(path=path), name, None, "system")
    return None


def _prompts(old: History, new: History, answers: list[list[Message]], differs: bool) -> Divergence | None:
    """Of the completions API: texts, or lists of token ids."""
    was, now = old.messages[0]["content"], new.messages[0]["content"]
    if type(was) is not type(now) or was == now:
        return None
    if now[: len(was)] != was:
        kind = Kind.REMOVED if was[: len(now)] == now else Kind.EDITED
        if kind is Kind.EDITED and isinstance(was, str):
            kind = kind_of_text(was, now)
        return Divergence(kind, "prompt", None, None, "", *excerpts(was, now))
    grown = now[len(was) :]
    texts = [answer[0].get("content") for answer in answers] if isinstance(was, str) else []
    told = [text for text in texts if isinstance(text, str)]
    if told and not any(grown.startswith(text) for text in told):
        resent = grown[: len(told[0])]
        kind = kind_of_text(told[0], resent)
        return Divergence(kind, "prompt", None, "assistant", "", *excerpts(told[0], resent))
    return Divergence(Kind.ANSWER, "prompt") if differs and not told else None


def _messages(old: History, new: History) -> Divergence | None:
    """The first message that was sent before and does not come again in its place."""
    was, now = ([normal(message) for message in history.messages] for history in (old, new))
    first = common(was, now)
    if first == len(was):
        return None
    gone = old.messages[first]
    if first == len(now):
        return _whole(Kind.REMOVED, old.part, first, role_of(gone), gone)
    came = new.messages[first]
    names, others = _names(old.messages[first:]), _names(new.messages[first:])
    here, there = _meeting(names, others)
    if (
        here < there and len(names) - here < len(others) - there
    ):  # an answer follows; else it is but said again
        return _whole(Kind.INSERTED, new.part, first, role_of(came), gone, came)
    if there == 0 < here and names[0] in others:
        return _whole(Kind.REORDERED, new.part, first, role_of(came), gone, came)
    role = role_of(gone)
    stays = role == role_of(came) and (here <= there or role in _INSTRUCTING)
    if stays or here == there > 0:
        return _located(difference(was[first], now[first]), new.part, first, role_of(came))
    kind = Kind.REASONING if role == "reasoning" else Kind.REMOVED
    return _whole(kind, old.part, first, role, gone, came)


def _names(messages: Sequence[Message]) -> list[str]:
    """One text for equal messages. Ids are part of it: a call may be made twice."""
    return [json.dumps(normal(message, MARKS), sort_keys=True) for message in messages]


def _meeting(was: Sequence[str], now: Sequence[str]) -> tuple[int, int]:
    """Where two lists whose first elements differ go on together: a place in each, 0 if they never do."""
    if was[1:2] == now[1:2] != []:
        return 1, 1
    places: dict[str, list[int]] = {}
    for here, name in enumerate(was):
        places.setdefault(name, []).append(here)
    for there, name in enumerate(now):
        if found := places.get(name):
            return min(found, key=lambda here: abs(here - there)), there
    return 0, 0


def _answer(old: History, new: History, answers: list[list[Message]]) -> Divergence | None:
    """How the reply that came between the requests was sent back."""
    place = len(old.messages)
    came = new.messages[place:]
    if not came:
        return None
    if role_of(came[0]) not in _SPOKEN:
        said = answers[0][0] if answers else {}
        return _whole(Kind.REMOVED, new.part, place, "assistant", said, came[0])
    found = [_resent(answer, came, new.part, place) for answer in answers]
    return None if None in found else next(iter(found), None)


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


def _labels(old: History, new: History) -> Divergence | None:
    """Differences that most templates do not render."""
    for index, (was, now) in enumerate(zip(old.messages, new.messages, strict=False)):
        if _nulled(was, now):
            return Divergence(Kind.NULLED, new.part, index, role_of(now), "content")
        labelled, also = normal(was, MARKS), normal(now, MARKS)
        if labelled != also:
            found = difference(labelled, also)._replace(kind=Kind.FIELD)
            return _located(found, new.part, index, role_of(now))
    return None


def _nulled(was: Message, now: Message) -> bool:
    return was.get("content") == "" and now.get("content") is None


def _unseen(
    old: History, new: History, answers: list[list[Message]], differs: bool, intact: bool | None
) -> Divergence | None:
    """What is left when all that was sent before is sent again."""
    place = len(old.messages)
    if place == len(new.messages):  # the same prompt again
        return None
    came = new.messages[place]
    if any(_nulled(answer[0], came) for answer in answers):
        return Divergence(Kind.NULLED, new.part, place, role_of(came), "content")
    if differs and (answers or intact is False):
        return Divergence(Kind.RENDERED, new.part)
    return Divergence(Kind.ANSWER, new.part, place, role_of(came)) if differs else None


def _located(found: Difference, part: str, index: int | None, role: str | None) -> Divergence:
    return Divergence(found.kind, part, index, role, found.path, *excerpts(found.before, found.after))


def _whole(
    kind: Kind, part: str, index: int, role: str | None, gone: Message, came: Message | None = None
) -> Divergence:
    said = excerpts(gone.get("content"), (came or {}).get("content"))
    return Divergence(kind, part, index, role, "", *said)
