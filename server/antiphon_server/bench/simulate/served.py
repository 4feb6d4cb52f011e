"""What became of simulated turns."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from antiphon_server.bench.simulate.legs import Begun, Filled
from antiphon_server.bench.simulate.workload import Turn
from antiphon_server.bench.turn_class import CLASSES, class_of
from antiphon_server.quantiles import Spread, spread
from antiphon_server.router.plan.plan import Plan

GROUPS = ("all", *CLASSES)
"""By a turn's index in its conversation."""


@dataclass(frozen=True, slots=True)
class Served:
    """A turn. Seconds; tokens. ``pace``: between two tokens of its answer, None for one of a single token.
    ``computed``, ``local``, ``pulled``: where the prompt's KV came from, together all of it; ``handed``:
    moved from prefill to decode. ``pulling``: seconds of the pull; ``prefill``: of the prefill leg."""

    index: int
    path: str
    reason: str
    ttft: float
    pace: float | None
    prompt: int
    answer: int
    computed: int
    local: int
    pulled: int
    handed: int
    prefill: float | None = None
    pulling: float = 0.0


def served(
    index: int,
    turn: Turn,
    plan: Plan,
    began: float,
    first: float,
    ended: float,
    leg: Begun,
    filled: Filled | None,
) -> Served:
    """A turn whose legs are done; ``filled``: prefill's, where it had one. Times: of one clock."""
    return Served(
        index,
        plan.path.value,
        plan.reason.value,
        first - began,
        (ended - first) / (turn.answer - 1) if turn.answer > 1 else None,
        turn.prompt,
        turn.answer,
        turn.prompt - filled.local - filled.pulled if filled is not None else leg.computed,
        filled.local if filled is not None else leg.cached,
        filled.pulled if filled is not None else 0,
        leg.fetched,
        filled.seconds if filled is not None else None,
        filled.pulling if filled is not None else 0.0,
    )


@dataclass(slots=True)
class Ledger:
    """All turns, in little memory: numbers only."""

    ttft: array[float] = field(default_factory=lambda: array("d"))
    pace: array[float] = field(default_factory=lambda: array("d"))
    index: array[int] = field(default_factory=lambda: array("i"))
    prefill: array[float] = field(default_factory=lambda: array("d"))
    pulling: array[float] = field(default_factory=lambda: array("d"))
    paths: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, turn: Served) -> None:
        """Take note of a turn."""
        self.ttft.append(turn.ttft)
        self.index.append(turn.index)
        if turn.pace is not None:
            self.pace.append(turn.pace)
        if turn.prefill is not None:
            self.prefill.append(turn.prefill)
        if turn.pulled:
            self.pulling.append(turn.pulling)
        self.paths[turn.path] += 1
        self.reasons[turn.reason] += 1
        for name in ("prompt", "answer", "computed", "local", "pulled", "handed"):
            self.tokens[name] += getattr(turn, name)

    def by_group(self) -> dict[str, Spread | None]:
        """TTFT by :data:`GROUPS`."""
        groups: dict[str, list[float]] = {name: [] for name in GROUPS}
        for index, seconds in zip(self.index, self.ttft, strict=True):
            groups["all"].append(seconds)
            groups[class_of(index + 1)].append(seconds)
        return {name: spread(values) for name, values in groups.items()}
