"""Leases on one worker rank: deadlines of finished requests whose blocks are kept for a reader.

vLLM keeps them in the connector worker's ``_reqs_to_send``: request id -> deadline on the worker's monotonic
clock. A deadline in the past is reaped on the next engine step, which frees the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Set
from dataclasses import dataclass, field

from antiphon_server.protocol import of_leg


@dataclass(slots=True)
class LeaseBook:
    """Reads and moves deadlines.

    ``deadlines`` is the worker's own map. ``known`` holds the ids of requests that ran here and are not
    done: a release may overtake the engine step that brings a deadline, and is then kept until it arrives.
    """

    deadlines: MutableMapping[str, float]
    known: Set[str]
    longest: float
    _early: set[str] = field(default_factory=set)

    def renew(self, request_id: str, ttl: float, now: float) -> float | None:
        """Move the deadline to ``now + ttl``, at most ``longest``. The seconds granted; None if unknown.

        A lease that has ended stays so: a renewal may be overtaken by the release of what it renews.
        """
        if self.deadlines.get(request_id, now) <= now:
            return None
        granted = max(0.0, min(ttl, self.longest))
        self.deadlines[request_id] = now + granted
        return granted

    def release(self, request_id: str, now: float) -> bool:
        """End the lease now; False if unknown."""
        if request_id in self.deadlines:
            self.deadlines[request_id] = now
            return True
        if request_id in self.known:
            self._early.add(request_id)
            return True
        return False

    def release_leg(self, leg: str, now: float) -> None:
        """End what a leg keeps, or will when it has finished; see :func:`of_leg`."""
        for request_id in [one for one in (*self.deadlines, *self.known) if of_leg(one, leg)]:
            self.release(request_id, now)

    def arrived(self, request_ids: Iterable[str], now: float) -> None:
        """Apply releases that came before their request's deadline did."""
        for request_id in self._early.intersection(request_ids):
            self._early.discard(request_id)
            if request_id in self.deadlines:
                self.deadlines[request_id] = now
        self._early &= self.known
