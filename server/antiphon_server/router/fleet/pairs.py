"""Which prefill and decode workers can hand KV to each other: by what they say of themselves, and by what
became of their transfers."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from antiphon_server.router.fleet.breaker import Breaker, BreakerPolicy, BreakerState
from antiphon_server.router.fleet.build import difference, incompatible
from antiphon_server.router.fleet.worker import Engine, Worker

__all__ = ["PAIR_POLICY", "Pairs", "incompatible"]

log = logging.getLogger(__name__)

PAIR_POLICY = BreakerPolicy(failures=3, window=300.0, pause=10.0, longest=300.0)
"""Failed transfers are rare and slow to fail, so they count for longer than failed legs."""


class Pairs:
    """Every (prefill, decode) pair. A failed transfer in either direction counts against the pair, not
    against its workers, which may do well with others."""

    def __init__(
        self, policy: BreakerPolicy = PAIR_POLICY, draw: Callable[[], float] = random.random
    ) -> None:
        self._policy = policy
        self._draw = draw
        self._breakers: dict[tuple[str, str], Breaker] = {}
        self._told: set[tuple[str, str, str]] = set()

    def failed(self, prefill: Worker, decode: Worker, now: float) -> None:
        """A transfer between them failed."""
        pair = prefill.name, decode.name
        breaker = self._breakers.get(pair)
        if breaker is None:
            breaker = self._breakers[pair] = Breaker(self._policy, self._draw)
        before = breaker.state(now)
        breaker.failed(now)
        if before is not BreakerState.OPEN and breaker.state(now) is BreakerState.OPEN:
            retry = round(breaker.retry_at(now) - now, 1)
            log.warning("pair.open", extra={"prefill": pair[0], "decode": pair[1], "seconds": retry})

    def succeeded(self, prefill: Worker, decode: Worker) -> None:
        """A transfer between them went well: what failed before is past."""
        self._breakers.pop((prefill.name, decode.name), None)

    def allowed(self, prefill: Worker, decode: Worker, now: float) -> bool:
        """The two may hand over KV now."""
        if self.conflict(prefill, decode) is not None:
            return False
        breaker = self._breakers.get((prefill.name, decode.name))
        return breaker is None or breaker.allows(now)

    def reachable(self, decode: Worker, prefills: Iterable[Worker], now: float) -> bool:
        """At least one of the prefill workers may hand over to ``decode`` now."""
        if self._breakers:
            return any(self.allowed(prefill, decode, now) for prefill in prefills)
        build = decode.engine.build
        for prefill in prefills:
            if prefill.engine.build is build or self.conflict(prefill, decode) is None:
                return True
        return False

    def conflict(self, prefill: Worker, decode: Worker) -> str | None:
        """Why they can never hand over, as they are; None if nothing is known against it."""
        reason = difference(prefill.engine.build, decode.engine.build)
        if reason is not None:
            told = prefill.url, decode.url, reason
            if told not in self._told:
                self._told.add(told)
                remedy = "run both with the same build and settings"
                log.error(
                    "pair.incompatible",
                    extra={"prefill": told[0], "decode": told[1], "reason": reason, "remedy": remedy},
                )
        return reason

    def reason(self, prefill: Worker, decode: Worker) -> str | None:
        """Why they are not used together, None if they are."""
        conflict = self.conflict(prefill, decode)
        if conflict is not None:
            return conflict
        breaker = self._breakers.get((prefill.name, decode.name))
        return "transfers between them failed" if breaker is not None and breaker.tripped else None

    def claim(self, prefill: Worker, decode: Worker, now: float) -> None:
        """The pair was chosen: see :meth:`Breaker.claim`."""
        breaker = self._breakers.get((prefill.name, decode.name))
        if breaker is not None:
            breaker.claim(now)

    def retry_at(self, prefill: Worker, decode: Worker, now: float) -> float:
        """When the pair may be tried: what is least bad has the smallest."""
        breaker = self._breakers.get((prefill.name, decode.name))
        return now if breaker is None else breaker.retry_at(now)

    def forget(self, worker: Worker) -> None:
        """The worker left or has a new life: what failed with it before says nothing now."""
        for pair in [pair for pair in self._breakers if worker.name in pair]:
            del self._breakers[pair]
        self._told = {told for told in self._told if worker.url not in told[:2]}

    def incompatible(self, engines: Iterable[Engine]) -> int:
        """How many pairs of engines can never hand over, as they are."""
        builds = Counter((engine.role, engine.build) for engine in engines)
        return sum(
            count * other_count
            for (role, build), count in builds.items()
            for (other_role, other), other_count in builds.items()
            if (role, other_role) == ("prefill", "decode") and difference(build, other) is not None
        )

    def states(self, now: float) -> Iterator[tuple[str, str, BreakerState]]:
        """Pairs that ever failed, by name."""
        for (prefill, decode), breaker in self._breakers.items():
            yield prefill, decode, breaker.state(now)
