"""What is worth keeping. Pure: a frontier is worth the seconds that its conversation is expected to save."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.keep.recompute import recompute
from antiphon_server.router.store.frontier import Frontier

Chance = Callable[[Key, float, float, float], float]
"""(key, seconds idle, horizon in seconds, now) -> chance that the conversation returns within the horizon."""

Saving = Callable[[int], float]
"""tokens -> seconds that it takes to compute them anew."""


class Cause(StrEnum):
    """Why a conversation's KV was given up, a label of ``antiphon_evictions``.

    ``idle`` (longer than may be), ``chance`` (it will hardly return, so its lease was left to end),
    ``expired`` (its lease could not be renewed), ``value`` (the budget of its engine went to others that are
    worth more), ``tenant`` (its tenant keeps as many as it may), ``count`` (the router does), ``pressure``
    (the engine needs the memory now), ``oversize`` (larger than the budget of its engine).
    """

    IDLE = "idle"
    CHANCE = "chance"
    EXPIRED = "expired"
    VALUE = "value"
    TENANT = "tenant"
    COUNT = "count"
    PRESSURE = "pressure"
    OVERSIZE = "oversize"


@dataclass(frozen=True, slots=True)
class Retention:
    """``keep``: seconds that a conversation may idle. ``least_chance``: of a return, below which a lease is
    not renewed. ``saving``: what a return saves."""

    chance: Chance
    keep: float
    least_chance: float = 0.0
    saving: Saving = field(default=recompute)

    def value(self, frontier: Frontier, now: float) -> float:
        """Seconds that each pinned token is expected to save before the conversation has idled too long."""
        tokens = max(frontier.tokens, 1)
        return self._return(frontier, now) * self.saving(tokens) / tokens

    def ranked(self, frontiers: Iterable[Frontier], now: float) -> list[Frontier]:
        """Least valuable first."""
        return sorted(frontiers, key=lambda frontier: self.rank(frontier, now))

    def rank(self, frontier: Frontier, now: float) -> tuple[float, float]:
        """What frontiers are ordered by: their value; of equals the one that is idle for longest is first."""
        return self.value(frontier, now), frontier.idle_since

    def outstayed(self, frontier: Frontier, now: float) -> bool:
        """Idle for longer than may be."""
        return now - frontier.idle_since > self.keep

    def hopeful(self, frontier: Frontier, now: float) -> bool:
        """Worth another lease."""
        return self._return(frontier, now) >= self.least_chance

    def _return(self, frontier: Frontier, now: float) -> float:
        idle = max(0.0, now - frontier.idle_since)
        return self.chance(frontier.key, idle, self.keep - idle, now)


def victims(
    ranked: Iterable[Frontier], excess: int, charge: Callable[[Frontier], int] = lambda f: f.tokens
) -> list[Frontier]:
    """The first of those ranked that together hold ``excess`` tokens, or all."""
    taken: list[Frontier] = []
    for frontier in ranked:
        if excess <= 0:
            break
        taken.append(frontier)
        excess -= charge(frontier)
    return taken
