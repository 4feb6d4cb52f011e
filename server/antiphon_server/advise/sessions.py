"""How long conversations last, and what follows each turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from antiphon_server.advise.turn import Turn

AWAY = 300.0
"""Seconds: a conversation counts as active while a turn is in flight, and so long after it at most."""


def followed(turns: Sequence[Turn]) -> Iterator[tuple[Turn, Turn | None]]:
    """Each turn, and the next one of its conversation."""
    for turn, after in pairwise([*turns, None]):
        assert turn is not None
        follows = after is not None and after.conversation == turn.conversation
        yield turn, after if follows else None


def active_seconds(turns: Sequence[Turn]) -> float:
    """For which conversations are active, summed up; 0 if the log does not tell. After its last turn a
    conversation is over."""
    total = 0.0
    for turn, after in followed(turns):
        total += turn.seconds or 0.0
        if after is not None and after.gap is not None:
            total += min(after.gap, AWAY)
    return total


def active_at_once(turns: Sequence[Turn]) -> tuple[float | None, int | None]:
    """Conversations that are active, mean while there are any, and most. Every turn has a time."""
    events: list[tuple[float, int]] = []
    for turn, after in followed(turns):
        begun = turn.at or 0.0
        end = begun + (turn.seconds or 0.0)
        if after is not None:
            end = min(end + AWAY, max(end, after.at or 0.0))
        events += [(begun, 1), (max(begun, end), -1)]
    events.sort()
    level = most = 0
    area = busy = 0.0
    last = events[0][0] if events else 0.0
    for at, step in events:
        if level:
            area, busy = area + level * (at - last), busy + at - last
        level, last = level + step, at
        most = max(most, level)
    return (area / busy if busy else None), (most or None)
