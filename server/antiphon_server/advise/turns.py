"""From a trace to turns. Names and texts stay behind."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon_server.advise.turn import Turn
from antiphon_server.traces.prefix import Change, repeats
from antiphon_server.traces.trace import Call, Trace

ROUNDED = 1.0
"""Seconds: logs tell times in whole ones, so that a turn may seem to begin before the last one's end."""


def turns_of(trace: Trace) -> list[Turn]:
    """Every call, by conversation and in order. Where a source cannot tell what repeats, nothing does."""
    return list(_turns(trace))


def _turns(trace: Trace) -> Iterator[Turn]:
    for number, conversation in enumerate(trace.conversations):
        found = repeats(conversation, trace.block_size)
        last: Call | None = None
        ends: list[float] = []
        for index, (call, repeat) in enumerate(zip(conversation.calls, found, strict=True)):
            held = repeated = local = 0
            busy = False
            if last is not None:
                held = last.prompt + last.answer
                ends = _since(last, ends)
                busy = _busy(ends, call)
            if repeat is not None:
                repeated = min(repeat.most, call.prompt)
                local = min(repeat.shared - (repeat.answer or 0), repeated)
            yield Turn(
                number,
                index,
                call.prompt,
                call.answer,
                held=held,
                repeated=repeated,
                local=local,
                extends=repeat is not None and repeat.change is Change.EXTENSION,
                told=last is None or repeat is not None,
                busy=busy,
                gap=_gap(last, call) if last is not None else None,
                at=call.at,
                seconds=call.seconds,
                ttft=call.ttft,
                cached=call.cached,
                path=call.path,
                reason=call.reason,
            )
            last = call


def _since(last: Call, ends: list[float]) -> list[float]:
    """Ends of turns after the last one began and took what was kept; its own among them."""
    if last.at is None:
        return []
    return [*(end for end in ends if end > last.at + ROUNDED), last.at + (last.seconds or 0.0)]


def _busy(ends: list[float], call: Call) -> bool:
    """None of them left anything for this call."""
    return call.at is not None and bool(ends) and min(ends) > call.at + ROUNDED


def _gap(last: Call, call: Call) -> float | None:
    """Never more than the clock allows: some logs tell a think time that sums up several."""
    if call.at is None or last.at is None:
        return call.gap
    most = max(0.0, call.at - last.at - (last.seconds or 0.0))
    return most if call.gap is None else min(call.gap, most)


def has_clock(trace: Trace, turns: list[Turn]) -> bool:
    """Times are told, and they tell what ran at once: not so where every conversation begins at 0."""
    if not trace.one_clock:
        return False
    starts = [turn.at for turn in turns if not turn.index]
    if not starts or any(turn.at is None for turn in turns):
        return False
    return len(starts) == 1 or any(starts)
