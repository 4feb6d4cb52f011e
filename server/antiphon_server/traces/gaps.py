"""The time between an answer and the next request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from antiphon_server.traces.trace import Call


def with_gaps(calls: Sequence[Call]) -> tuple[tuple[Call, ...], int]:
    """A conversation's calls in order of time, with the gaps that their times tell; one that the source tells
    stays. The second: how many gaps hold the last answer's time, too, as nothing says how long that took."""
    if all(call.at is not None for call in calls):
        calls = sorted(calls, key=lambda call: call.at or 0.0)
    found: list[Call] = []
    unsure = 0
    for call in calls:
        gap = call.gap
        if not found:
            gap = None
        elif gap is None and call.at is not None and found[-1].at is not None:
            gap = max(0.0, call.at - found[-1].at - (found[-1].seconds or 0.0))
            unsure += found[-1].seconds is None
        found.append(call if gap == call.gap else replace(call, gap=gap))
    return tuple(found), unsure


def unsure_note(unsure: int) -> str:
    return f"{unsure} gaps hold the answer before them, too: nothing says how long it took"


def long_note(conversations: Iterable[Sequence[Call]]) -> str | None:
    """Where most answers end after the next request has begun. Some agents ask so; but times and durations in
    different units look alike."""
    pairs = [
        last.seconds > call.at - last.at
        for calls in conversations
        for last, call in pairwise(calls)
        if last.seconds is not None and last.at is not None and call.at is not None
    ]
    long = sum(pairs)
    if 2 * long <= len(pairs):
        return None
    return (
        f"{long} of {len(pairs)} answers take longer than it is to the conversation's next call: are "
        'durations in seconds (in ms only under names like "duration_ms"), and times in one unit? '
        "docs/traces.md names the units"
    )
