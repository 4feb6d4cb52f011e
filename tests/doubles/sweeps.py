"""Sweeps that nobody measured, for tests of what is made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from antiphon_server.bench.conditions import Conditions
from antiphon_server.bench.sweep.files import write
from antiphon_server.bench.sweep.plan import Plan
from antiphon_server.bench.sweep.record import Cache, Place, Sweep, Turn
from antiphon_server.bench.sweep.verdict import Limits, verdict
from antiphon_server.bench.timing import Answer, Outcome, Timed
from antiphon_server.counters import Counters

CONDITIONS = Conditions("2026-11-29", "a CPU", 2, 0.1, "tiny", "float32", 32, "0.32", "1.5", "1 + 1", "empty")
PLAN = Plan((1000, 8000), conversations=1, turns=2, clients=1, active=1, repeat=3)
ARMS = ("off", "reuse", "auto")
ANSWER = Answer((1, 2, 3), "abc")
OUTCOMES = {
    "off": Outcome("cold", 0, "off"),
    "reuse": Outcome("reuse", 640, "full"),
    "auto": Outcome("append", 640, "short"),
}
SECONDS = {"off": 4.0, "reuse": 1.0, "auto": 0.5}


def turn(arm: str, place: Place, ttft: float | None = None, **changed: Any) -> Turn:
    seconds = SECONDS[arm] if ttft is None else ttft
    timed = Timed(seconds, 9.0, place.length, "prompt", OUTCOMES[arm], ANSWER, times=(seconds, seconds + 0.1))
    prefill = Counters(
        received=2e6, receiving=0.02, busy=0.8 * seconds, computed=100, computing=0.5 * seconds
    )
    return Turn(arm, place, dataclasses.replace(timed, **changed), prefill, Counters(computing=0.01))


def places(caches: tuple[Cache, ...] = (Cache.EMPTY, Cache.WARM)) -> Iterator[Place]:
    for cache in caches:
        for length in PLAN.lengths:
            for repeat in range(1, 4):
                for number in (1, 2):
                    yield Place(cache, length, repeat, 0, number)


def sweep(turns: Sequence[Turn] | None = None, arms: tuple[str, ...] = ARMS) -> Sweep:
    every = [turn(arm, place) for place in places() for arm in arms] if turns is None else turns
    return Sweep("cpu", PLAN, arms, CONDITIONS, tuple(every))


def with_turn(base: Sweep, arm: str, place: Place, **changed: Any) -> Sweep:
    turns = [turn(arm, place, **changed) if (t.arm, t.place) == (arm, place) else t for t in base.turns]
    return dataclasses.replace(base, turns=tuple(turns))


LATER = Place(Cache.EMPTY, 8000, 2, 0, 2)


def saved(turns: Sequence[Turn], folder: Path) -> Path:
    """The JSON of a sweep with these turns."""
    found = sweep(turns)
    return write(found, verdict(found, Limits()), folder)[0]
