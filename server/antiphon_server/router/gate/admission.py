"""How many turns are served at once, who is next, and who is told to come back later.

A turn is admitted at once while there is room. Otherwise it waits: each tenant has a line of its own, and the
lines take turns, so a tenant with many waiting turns does not hold up one with few. When all lines together
are full, the last of the longest line has to go. Counters change in one place each way, in code that cannot
be interrupted, so none leaks (https://github.com/vllm-project/production-stack/issues/1072).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from antiphon_server.router.errors import DrainingError, OverloadedError, RouterError
from antiphon_server.router.gate.pace import Pace
from antiphon_server.router.gate.tenants import Tenant
from antiphon_server.router.metrics import Metrics

TURNS_PER_DECODE = 1024
"""As many as vLLM runs at once by default on large accelerators (``max_num_seqs``): with fewer, the router
would hold up what an engine could serve. What is above waits here, where tenants take turns."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """``turns``: at once. ``queue``: that wait. ``patience``: seconds one waits at most. ``tenant_turns``: of
    one tenant at once where its own limits say nothing; 0: no limit."""

    turns: Callable[[], int]
    queue: int
    patience: float
    tenant_turns: int = 0


class _Waiter:
    """A turn in a line. ``called``: done when it is its turn (None) or has to go (why)."""

    __slots__ = ("called", "tenant")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.called: asyncio.Future[RouterError | None] = asyncio.get_running_loop().create_future()


class Admitted:
    """A turn's time in flight."""

    __slots__ = ("_admission", "_began", "_tenant")

    def __init__(self, admission: Admission, tenant: Tenant) -> None:
        self._admission = admission
        self._tenant = tenant
        self._began = 0.0

    async def __aenter__(self) -> None:
        self._began = await self._admission.begin(self._tenant)

    async def __aexit__(self, *_: object) -> None:
        self._admission.end(self._tenant, self._began)


class Admission:
    """Admits turns. ``draining``: no new ones; those in flight finish."""

    def __init__(
        self,
        capacity: Capacity,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        by_tenant: bool = False,
    ) -> None:
        self._capacity = capacity
        self.draining = False
        self.in_flight = 0
        self._metrics = metrics
        self._clock = clock
        self._by_tenant = by_tenant
        self._pace = Pace()
        self._running: dict[str, int] = {}
        self._lines: dict[str, deque[_Waiter]] = {}
        """By tenant; none is empty. The first is next."""
        self._waiting = 0
        metrics.in_flight.set_function(lambda: self.in_flight)
        metrics.queue_depth.set_function(lambda: self._waiting)

    @property
    def waiting(self) -> int:
        """Turns that are not admitted yet."""
        return self._waiting

    def admit(self, tenant: Tenant) -> Admitted:
        """The time that a turn is in flight, from when there is room for it.

        Raises:
            OverloadedError: it may not even wait, or has waited too long; with Retry-After.
            DrainingError: the router takes no more turns.
        """
        return Admitted(self, tenant)

    async def begin(self, tenant: Tenant) -> float:
        """See :meth:`admit`. Returns when the turn began."""
        if self.draining:
            raise self._draining()
        if self._room() and self._tenant_room(tenant):
            self._enter(tenant)
        else:
            await self._wait(tenant)
        return self._clock()

    def end(self, tenant: Tenant, began: float) -> None:
        """The turn is over."""
        self._pace.finished(self._clock() - began)
        self._leave(tenant)

    def resize(self, capacity: Capacity) -> None:
        """Go by other limits from now on; who waits goes on waiting."""
        self._capacity = capacity
        self._call_next()

    def drain(self) -> None:
        """Take no more turns, and send away those that wait: another router can have them."""
        self.draining = True
        for line in self._lines.values():
            for waiter in line:
                waiter.called.set_result(self._draining())
        self._lines.clear()
        self._count_waiting(-self._waiting)

    async def _wait(self, tenant: Tenant) -> None:
        self._make_space(tenant)
        waiter = _Waiter(tenant)
        self._lines.setdefault(tenant.name, deque()).append(waiter)
        self._count_waiting(1)
        began = self._clock()
        try:
            await asyncio.wait({waiter.called}, timeout=self._capacity.patience)
        except asyncio.CancelledError:
            if not waiter.called.done():
                self._withdraw(waiter)
            elif waiter.called.result() is None:  # called and left in the same instant
                self._leave(tenant)
            raise
        self._metrics.queue_seconds.observe(self._clock() - began)
        if not waiter.called.done():
            self._withdraw(waiter)
            raise self._overloaded(tenant, "timeout")
        refusal = waiter.called.result()
        if refusal is not None:
            raise refusal

    def _make_space(self, tenant: Tenant) -> None:
        """Room for one more in the lines: whose is longest loses its last, which may be the newcomer's."""
        if self._waiting < self._capacity.queue:
            return
        own = len(self._lines.get(tenant.name, ()))
        longest = max(self._lines.values(), key=len, default=None)
        if longest is None or len(longest) <= own + 1:
            raise self._overloaded(tenant, "full")
        last = longest[-1]
        last.called.set_result(self._overloaded(last.tenant, "full"))
        self._withdraw(last)

    def _call_next(self) -> None:
        """Admit those who wait while there is room: the first of each line that may go, lines in turn."""
        while self._room():
            name = next((n for n, line in self._lines.items() if self._tenant_room(line[0].tenant)), None)
            if name is None:
                return
            line = self._lines.pop(name)
            waiter = line.popleft()
            if line:
                self._lines[name] = line  # behind the others
            self._count_waiting(-1)
            self._enter(waiter.tenant)
            waiter.called.set_result(None)

    def _withdraw(self, waiter: _Waiter) -> None:
        line = self._lines[waiter.tenant.name]
        line.remove(waiter)
        if not line:
            del self._lines[waiter.tenant.name]
        self._count_waiting(-1)

    def _enter(self, tenant: Tenant) -> None:
        self._count_running(tenant, 1)
        self._metrics.admitted.inc()

    def _leave(self, tenant: Tenant) -> None:
        self._count_running(tenant, -1)
        self._call_next()

    def _count_running(self, tenant: Tenant, change: int) -> None:
        self.in_flight += change
        running = self._running.get(tenant.name, 0) + change
        if running:
            self._running[tenant.name] = running
        else:
            del self._running[tenant.name]
        if self._by_tenant:
            self._metrics.tenant_in_flight.labels(tenant.name if tenant.named else "").inc(change)

    def _count_waiting(self, change: int) -> None:
        self._waiting += change

    def _room(self) -> bool:
        return self.in_flight < self._capacity.turns()

    def _limit(self, tenant: Tenant) -> int:
        own = tenant.limits.concurrency
        return self._capacity.tenant_turns if own is None else own

    def _tenant_room(self, tenant: Tenant) -> bool:
        limit = self._limit(tenant)
        return not limit or self._running.get(tenant.name, 0) < limit

    def _overloaded(self, tenant: Tenant, cause: str) -> RouterError:
        """``cause``: full or timeout; or tenant where its own limit is what holds it up."""
        limit = self._limit(tenant)
        running = self._running.get(tenant.name, 0)
        own = bool(limit) and running >= limit
        ahead = len(self._lines.get(tenant.name, ())) if own else self._waiting
        seconds = math.ceil(self._pace.wait(ahead + 1, running if own else self.in_flight))
        what = (
            f"tenant has {running} turns in flight, its limit"
            if own
            else f"router has {self.in_flight} turns in flight and {self._waiting} that wait"
        )
        error = OverloadedError(f"this {what}: try again in {seconds} s", seconds)
        return self._refused(error, "tenant" if own else cause)

    def _draining(self) -> RouterError:
        message = "this router is being stopped: send the request again, another takes it"
        return self._refused(DrainingError(message), "draining")

    def _refused(self, error: RouterError, cause: str) -> RouterError:
        self._metrics.refused.labels(cause).inc()
        return error
