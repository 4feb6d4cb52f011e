"""Which worker takes a leg: the conversation's own while it is up and not overloaded; else one that its hash
names, so that routers agree; else any."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum

from antiphon_server.router.fleet.pairs import Pairs
from antiphon_server.router.fleet.places import NOWHERE, Place, Places, digest
from antiphon_server.router.fleet.ring import Ring
from antiphon_server.router.fleet.worker import Role, Worker
from antiphon_server.router.fleet.workers import Workers
from antiphon_server.router.gate.identity import Key

__all__ = ["Outcome", "Place", "Placement"]


class Outcome(StrEnum):
    """How a worker was found. ``sticky``: the conversation's own. ``moved_load``: its own has too much to do.
    ``moved_health``: its own is down, draining, shut out, or was to be avoided. ``new``: it had none.
    ``least_bad``: every breaker is open, and the one that opens for a trial first is used."""

    STICKY = "sticky"
    MOVED_LOAD = "moved_load"
    MOVED_HEALTH = "moved_health"
    NEW = "new"
    LEAST_BAD = "least_bad"


class Placement:
    """``known``: conversations whose places are remembered. ``bound``: a worker is overloaded with more than
    ``bound`` times the mean load plus one leg. ``placed``: is told of every choice."""

    def __init__(
        self,
        workers: Workers,
        *,
        known: int = 200_000,
        bound: float = 1.5,
        pairs: Pairs | None = None,
        clock: Callable[[], float] = time.monotonic,
        source: random.Random | None = None,
        placed: Callable[[Role, Outcome], None] | None = None,
    ) -> None:
        self.pairs = pairs if pairs is not None else Pairs()
        self._workers = workers
        self._places = Places(known)
        self._bound = bound
        self._clock = clock
        self._random = source if source is not None else random.Random()
        self._placed = placed
        self._rings: dict[Role, tuple[int, Ring]] = {}

    def retune(self, *, bound: float) -> None:
        """Go by another bound from the next turn on."""
        self._bound = bound

    def of(self, key: Key | None) -> Place:
        """Where the conversation was, or nowhere."""
        return self._places.of(key) if key is not None else NOWHERE

    def knows(self, tenant: str, conversation: str) -> bool:
        """True when a conversation was served here."""
        return self._places.knows(tenant, conversation)

    def remember(self, key: Key, place: Place) -> None:
        """The conversation was served at ``place``."""
        self._places.remember(key, place)

    def forget(self, tenant: str, conversation: str) -> None:
        """The conversation is over."""
        self._places.forget(tenant, conversation)

    def decode(
        self, key: Key | None, preferred: str | None = None, avoid: Collection[str] = ()
    ) -> Worker | None:
        """A worker for the decode leg, ``preferred`` if that can be. One that can take KV from no prefill
        worker is chosen only when none can. None when no worker is up but those of ``avoid``."""
        now = self._clock()
        serving = _serving(self._workers.decode, avoid)
        closed = _closed(serving, now)
        prefills = _closed(_serving(self._workers.prefill), now)
        reachable = self.pairs.reachable
        paired = [w for w in closed if reachable(w, prefills, now)]
        chosen = self._choose("decode", _elsewhere(paired or closed, avoid), key, preferred)
        if chosen is None and serving:
            chosen = min(serving, key=lambda w: (w.engine.breaker.retry_at(now), w.load))
            self._tell("decode", Outcome.LEAST_BAD)
        if chosen is not None:
            chosen.engine.breaker.claim(now)
        return chosen

    def prefill(
        self, key: Key | None, decode: Worker, preferred: str | None = None, avoid: Collection[str] = ()
    ) -> Worker | None:
        """A worker for the prefill leg of a turn that ``decode`` continues, ``preferred`` if that can be.
        None when no worker is up that can hand over to it, but those of ``avoid``. Not every turn needs
        prefill in the end: one that does calls :meth:`claim`."""
        now, pairs = self._clock(), self.pairs
        serving = [w for w in _serving(self._workers.prefill, avoid) if pairs.conflict(w, decode) is None]
        fit = [w for w in _closed(serving, now) if pairs.allowed(w, decode, now)]
        chosen = self._choose("prefill", _elsewhere(fit, avoid), key, preferred)
        if chosen is None and serving:
            chosen = min(serving, key=lambda w: (self._retry_at(w, decode, now), w.load))
            self._tell("prefill", Outcome.LEAST_BAD)
        return chosen

    def claim(self, prefill: Worker, decode: Worker) -> None:
        """A turn goes from ``prefill`` to ``decode``: where they are on trial, no other goes meanwhile."""
        now = self._clock()
        prefill.engine.breaker.claim(now)
        self.pairs.claim(prefill, decode, now)

    def _retry_at(self, prefill: Worker, decode: Worker, now: float) -> float:
        return max(prefill.engine.breaker.retry_at(now), self.pairs.retry_at(prefill, decode, now))

    def any_of(self, workers: Sequence[Worker], avoid: Collection[str] = ()) -> Worker | None:
        """A worker for what is no turn: of two at random the less loaded. One that gets no turns, or one of
        ``avoid``, only if there is no other; None if none is healthy."""
        healthy = [w for w in workers if w.healthy]
        serving = _closed(_serving(healthy), self._clock())
        fit = [w for w in serving or healthy if w.name not in avoid] or healthy
        return min(self._random.sample(fit, min(2, len(fit))), key=lambda w: w.load, default=None)

    def _choose(
        self, role: Role, fit: Sequence[Worker], key: Key | None, preferred: str | None
    ) -> Worker | None:
        if not fit:
            return None
        most = self._bound * sum([w.in_flight + w.backlog for w in fit]) / len(fit) + 1
        outcome = Outcome.NEW
        if preferred is not None:
            own = self._workers.find(preferred)
            if own is None or own not in fit:
                outcome = Outcome.MOVED_HEALTH
            elif own.load > most:
                outcome = Outcome.MOVED_LOAD
            else:
                self._tell(role, Outcome.STICKY)
                return own
        self._tell(role, outcome)
        # The mean is below the bound, so one is always left.
        light = {w.name: w for w in fit if w.load <= most}
        if len(light) == 1:
            return next(iter(light.values()))
        if key is None:
            two = self._random.sample(list(light.values()), 2)
        else:
            point = int.from_bytes(digest(key.tenant, key.conversation)[:8], "big")
            by_name = {w.name: w for w in fit}
            first = [by_name[name] for name in self._walk(role, point, by_name, 2)]
            two = [w for w in first if w.name in light] or [
                light[name] for name in self._walk(role, point, light, 1)
            ]
        return min(two, key=lambda w: w.load)

    def _walk(self, role: Role, point: int, among: Collection[str], most: int) -> list[str]:
        """The first names on the ring, at most so many, that are among these."""
        found: list[str] = []
        for name in self._ring(role).walk(point):
            if name in among:
                found.append(name)
                if len(found) == most:
                    break
        return found

    def _ring(self, role: Role) -> Ring:
        """Of all workers, also those that are down: when one returns, its conversations return to it."""
        kept = self._rings.get(role)
        if kept is None or kept[0] != self._workers.version:
            kept = self._rings[role] = (
                self._workers.version,
                Ring(worker.name for worker in self._workers.of(role)),
            )
        return kept[1]

    def _tell(self, role: Role, outcome: Outcome) -> None:
        if self._placed is not None:
            self._placed(role, outcome)


def _serving(workers: Sequence[Worker], avoid: Collection[str] = ()) -> list[Worker]:
    serving = [w for w in workers if w.engine.healthy and not w.engine.draining]
    return [w for w in serving if w.name not in avoid] if avoid else serving


def _closed(workers: Sequence[Worker], now: float) -> list[Worker]:
    return [w for w in workers if w.engine.breaker.allows(now)]


def _elsewhere(fit: list[Worker], avoid: Collection[str]) -> list[Worker]:
    """Other engines than those to be avoided, where there are any: ranks of one often fail together."""
    if not avoid:
        return fit
    engines = {name.partition("#")[0] for name in avoid}
    return [w for w in fit if w.url not in engines] or fit
