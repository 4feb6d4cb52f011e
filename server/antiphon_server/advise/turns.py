"""From a trace to turns. Names and texts stay behind."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon_server.advise.turn import Turn
from antiphon_server.traces.prefix import Change, repeats
from antiphon_server.traces.trace import Call, Trace


def turns_of(trace: Trace) -> list[Turn]:
    """Every call, by conversation and in order. Where a source cannot tell what repeats, nothing does."""
    return list(_turns(trace))


def _turns(trace: Trace) -> Iterator[Turn]:
    for number, conversation in enumerate(trace.conversations):
        found = repeats(conversation, trace.block_size)
        last: Call | None = None
        for index, (call, repeat) in enumerate(zip(conversation.calls, found, strict=True)):
            held = repeated = local = 0
            if last is not None:
                held = last.prompt + last.answer
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
                gap=_gap(last, call) if last is not None else None,
                at=call.at,
                seconds=call.seconds,
                ttft=call.ttft,
                cached=call.cached,
                path=call.path,
                reason=call.reason,
            )
            last = call


def _gap(last: Call, call: Call) -> float | None:
    """Never more than the clock allows: some logs tell a think time that sums up several."""
    if call.at is None or last.at is None:
        return call.gap
    most = max(0.0, call.at - last.at - (last.seconds or 0.0))
    return most if call.gap is None else min(call.gap, most)


def has_clock(turns: list[Turn]) -> bool:
    """Times are told, and they tell what ran at once: not so where every conversation begins at 0."""
    starts = [turn.at for turn in turns if not turn.index]
    if not starts or any(turn.at is None for turn in turns):
        return False
    return len(starts) == 1 or any(starts)
