"""How long a replay waits at least: its gaps, before anything is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.script import Script

WORTH_TELLING = 60.0
"""Seconds."""


def groups(scripts: Sequence[Script], *, clients: int, arms: int) -> Iterator[Sequence[Script]]:
    """What one arm plays before another's turn comes: all of them, or as many as there are clients."""
    size = len(scripts) if arms == 1 else clients
    for begin in range(0, len(scripts), size):
        yield scripts[begin : begin + size]


def waiting(scripts: Sequence[Script], pace: Pace, *, clients: int, arms: int) -> float:
    """Seconds that pass at least, however fast the answers come."""
    least = 0.0
    for group in groups(scripts, clients=clients, arms=arms):
        gaps = [sum(pace.seconds(turn.gap) for turn in script.turns) for script in group]
        least += max(sum(gaps) / min(clients, len(gaps)), *gaps)
    return least * arms


def forecast(scripts: Sequence[Script], pace: Pace, *, clients: int, arms: int) -> str | None:
    """In words, with what would shorten it; None: it is not worth telling."""
    least = waiting(scripts, pace, clients=clients, arms=arms)
    if least < WORTH_TELLING:
        return None
    longest, name, place = max(
        (pace.seconds(turn.gap), script.name, index)
        for script in scripts
        for index, turn in enumerate(script.turns, 1)
    )
    at_once = "one client" if clients == 1 else f"{clients} clients"
    each = "" if arms == 1 else f", {arms} arms one after the other"
    return (
        f"gaps alone take at least {_long(least)} with {at_once}{each}; the longest, before turn {place} of "
        f"{name}, {_long(longest)}: --time divides them, --longest-gap bounds each"
    )


def _long(seconds: float) -> str:
    """Rounded down, as it is a bound."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{math.floor(10 * seconds / size) / 10:g} {unit}"
    return f"{math.floor(10 * seconds) / 10:g} s"
