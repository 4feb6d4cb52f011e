"""Calls, logged one by one, as conversations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from antiphon_server.traces.chain import chained
from antiphon_server.traces.clock import far_note, is_relative, order, plausible
from antiphon_server.traces.gaps import long_note, unsure_note, with_gaps
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.trace import Call, Conversation


@dataclass(frozen=True, slots=True)
class Logged:
    """A call as logged; its time is one of the clock's. ``conversation``: its id, None where it has none.
    ``weak``: an id that may be of this call alone. ``answered``: the log has the answer, or its length.
    ``told``: what the log has as its time; None where it has none."""

    call: Call
    conversation: str | None = None
    weak: str | None = None
    parent: str | None = None
    answered: bool = True
    told: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class _Group:
    """Of one conversation. ``guessed``: they do not name it."""

    name: str
    parent: str | None
    logged: list[Logged]
    guessed: bool = False


def gathered(logged: Sequence[Logged], pool: Pool) -> tuple[list[Conversation], list[str]]:
    """Conversations, and notes. Their times begin with the first call's."""
    logged, again = _once(logged)
    logged, notes = _in_time(logged)
    common = {name for name, times in Counter(each.weak for each in logged if each.weak).items() if times > 1}
    named: dict[tuple[str, str | None], list[Logged]] = {}
    loose: list[Logged] = []
    for each in logged:
        name = each.conversation or (each.weak if each.weak in common else None)
        if name is None:
            loose.append(each)
        else:
            named.setdefault((name, each.call.model), []).append(each)
    if again:
        notes.append(again_note(again, "calls"))
    models: dict[str, str | None] = {}
    for name, model in named:
        models.setdefault(name, model)
    groups = [_Group(*_named(key, models, found), found) for key, found in named.items()]
    if loose:
        by_call = {id(each.call): each for each in loose}
        chains = chained([each.call for each in loose])
        groups += [
            _Group(f"chain-{i}", None, [by_call[id(call)] for call in chain], guessed=True)
            for i, chain in enumerate(chains, 1)
        ]
        notes.append(
            f"{len(loose)} calls name no conversation: they were put together where the messages of one go "
            f"on from another's, which gave {len(chains)} conversations"
        )
    return _finished(groups, pool, notes), notes


def again_note(again: int, what: str) -> str:
    return f"{again} {what} are in the logs more than once, alike to the last figure: they count once"


def _once(logged: Sequence[Logged]) -> tuple[list[Logged], int]:
    """Without calls that were exported twice, and how many these are. Without a time, nothing tells them from
    what was asked again."""
    seen: dict[tuple[object, ...], list[Logged]] = {}
    found = []
    for each in logged:
        if each.call.at is not None:
            alike = seen.setdefault((each.conversation, each.call.at, each.call.prompt), [])
            if each in alike:
                continue
            alike.append(each)
        found.append(each)
    return found, len(logged) - len(found)


def _in_time(logged: Sequence[Logged]) -> tuple[list[Logged], list[str]]:
    """In order; their times from the first one's. And notes about times."""
    times = plausible([each.call.at for each in logged])
    began = min((at for at in times if at is not None), default=0.0)
    moved = [_at(logged[i], times[i], began) for i in order(times)]
    return moved, _time_notes(logged, times)


def _at(each: Logged, at: float | None, began: float) -> Logged:
    return replace(each, call=replace(each.call, at=None if at is None else at - began))


def _time_notes(logged: Sequence[Logged], times: Sequence[float | None]) -> list[str]:
    """``times``: those that are taken to be right."""
    notes = []
    lost = [each for each, at in zip(logged, times, strict=True) if at is None]
    far = [each.told for each in lost if each.call.at is not None]
    unread = [each.told for each in lost if each.call.at is None and each.told is not None]
    if far:
        notes.append(f"{far_note(len(far), 'calls')}, first {far[0]!r:.60}")
    if unread:
        notes.append(f"{len(unread)} calls have a time that cannot be read, first {unread[0]!r:.60}")
    if 0 < (without := len(lost) - len(far) - len(unread)) < len(logged):
        notes.append(f"{without} calls have no time")
    if is_relative(times):
        notes.append("times do not count from 1970: they are taken to be in seconds")
    return notes


def _named(
    key: tuple[str, str | None], models: dict[str, str | None], found: Sequence[Logged]
) -> tuple[str, str | None]:
    """Name and parent. KV is a model's own, so one with several models is a conversation for each."""
    name, model = key
    if models[name] == model:
        return name, next((each.parent for each in found if each.parent), None)
    return f"{name}/{model}", name


def _finished(groups: Sequence[_Group], pool: Pool, notes: list[str]) -> list[Conversation]:
    unsure_gaps = missing = 0
    found = []
    for one in groups:
        group = one.logged
        calls = [
            each.call
            if each.answered
            else _answered(each.call, group[i + 1].call if i + 1 < len(group) else None, pool)
            for i, each in enumerate(group)
        ]
        missing += sum(
            not each.answered and call.reply is None for each, call in zip(group, calls, strict=True)
        )
        timed, unsure = with_gaps(calls)
        unsure_gaps += unsure
        found.append(Conversation(one.name, timed, one.parent, guessed=one.guessed))
    if long := long_note(conversation.calls for conversation in found):
        notes.append(long)
    if unsure_gaps:
        notes.append(unsure_note(unsure_gaps))
    if missing:
        notes.append(f"{missing} answers are not in the log: they count as empty")
    return found


def _answered(call: Call, after: Call | None, pool: Pool) -> Call:
    """A call with the answer that the next one's history has."""
    if call.history is None or after is None or after.history is None:
        return call
    length = len(call.history)
    if len(after.history) <= length or any(
        a is not b for a, b in zip(call.history, after.history, strict=False)
    ):
        return call
    reply = after.history[length]
    return (
        replace(call, reply=reply, answer=pool.tokens([reply])) if reply.get("role") == "assistant" else call
    )
