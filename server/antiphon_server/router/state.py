"""What all turns of a router share."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine
from typing import Any

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.drain import Drain
from antiphon_server.router.fleet.breaker import BreakerPolicy
from antiphon_server.router.fleet.discovery import Discovery
from antiphon_server.router.fleet.pairs import PAIR_POLICY, Pairs
from antiphon_server.router.fleet.placement import Placement
from antiphon_server.router.fleet.workers import Worker, Workers
from antiphon_server.router.gate.admission import TURNS_PER_DECODE, Admission, Capacity
from antiphon_server.router.gate.tenants import Tenants
from antiphon_server.router.keep.conversations import Conversations
from antiphon_server.router.keep.eviction import Eviction
from antiphon_server.router.keep.leases import Leases
from antiphon_server.router.keep.pressure import PressureWatch
from antiphon_server.router.keep.recompute import Recompute
from antiphon_server.router.keep.releases import LeaseCalls
from antiphon_server.router.keep.retention import Retention
from antiphon_server.router.keep.returns import Returns
from antiphon_server.router.keep.room import Rooms
from antiphon_server.router.metrics import Metrics
from antiphon_server.router.plan.budget import AppendBudget
from antiphon_server.router.plan.rates import Rates
from antiphon_server.router.store.frontier import FrontierStore
from antiphon_server.router.store.memory_store import MemoryStore
from antiphon_server.router.store.store_url import MEMORY
from antiphon_server.router.surfaces.responses import Responses
from antiphon_server.router.turn.handles import Handles
from antiphon_server.router.upstream.upstream import Timeouts, Upstream


class State:
    """Built once an app; ``start`` and ``stop`` belong to its lifespan."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        store: FrontierStore | None = None,
        upstream: Upstream | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.metrics = Metrics()
        self.handles = Handles(self.metrics.handles)
        self.drain = Drain()
        self.tenants = Tenants(settings)
        self.store = store if store is not None else self._own_store(settings)
        self.upstream = upstream or Upstream(_timeouts(settings), keep_alive=settings.keep_alive)
        key = settings.engine_key.get_secret_value() if settings.engine_key is not None else None
        self.engine_headers: tuple[tuple[str, str], ...] = (
            (("Authorization", f"Bearer {key}"),) if key else ()
        )
        self.workers = Workers(
            settings.prefill,
            settings.decode,
            self.upstream,
            headers=self.engine_headers,
            interval=settings.probe_interval,
            timeout=settings.probe_timeout,
            breaker=BreakerPolicy(
                failures=settings.breaker_failures,
                ratio=settings.breaker_ratio,
                window=settings.breaker_window,
                pause=settings.breaker_pause,
                longest=settings.breaker_longest,
            ),
            restarted=self._forget_old_life,
            removed=self._forget_removed,
            clock=clock,
        )
        self.placement = Placement(
            self.workers,
            known=settings.known,
            bound=settings.load_bound,
            pairs=Pairs(dataclasses.replace(PAIR_POLICY, failures=settings.pair_failures)),
            clock=clock,
            placed=self.metrics.placed,
        )
        self.rates = Rates(clock)
        self.responses = Responses(settings.responses)
        self.returns = Returns(settings.known)
        self.rooms = Rooms(settings.keep_share, clock)
        self._saving = Recompute(self.rates.recompute, clock)
        retention = self._retention(settings)
        self.leases = Leases(
            self.workers,
            self.store,
            LeaseCalls(self.upstream, self.engine_headers),
            self.metrics,
            self.rooms,
            retention,
            ttl=settings.lease_ttl,
            interval=settings.renew_interval,
            clock=clock,
        )
        self.eviction = Eviction(
            self.store,
            self.leases,
            self.rooms,
            retention,
            clock,
            conversations=settings.conversations,
            per_tenant=settings.tenant_conversations,
            own_limit=self.tenants.conversations,
            headroom=0.05,
        )
        self.conversations = Conversations(
            self.store,
            self.placement,
            self.leases,
            self.workers,
            self.rooms,
            self.eviction,
            self.returns,
            grace=settings.pull_grace,
            clock=clock,
        )
        self.pressure = PressureWatch(
            self.workers,
            self.upstream,
            self.eviction,
            self.leases,
            headers=self.engine_headers,
            interval=settings.pressure_interval,
            timeout=settings.probe_timeout,
            high=settings.pressure_high,
            low=settings.pressure_low,
            clock=clock,
        )
        self.admission = Admission(
            self._capacity(settings), self.metrics, clock=clock, by_tenant=settings.tenant_metrics
        )
        self.discovery = Discovery(settings, self.workers, failed=self._discovery_failed)
        self._budgets: dict[str, AppendBudget] = {}
        self._background: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Learn about the engines; begin to probe and to renew."""
        await self.store.start()
        await self.workers.start()
        await self.leases.start()
        await self.pressure.start()
        await self.discovery.start()

    def _own_store(self, settings: RouterSettings) -> FrontierStore:
        release = settings.release_on_stop
        local = MemoryStore(settings.conversations, release=release is not False, clock=self.clock)
        if settings.store == MEMORY:
            return local
        from antiphon_server.router.store.degrading_store import DegradingStore
        from antiphon_server.router.store.redis_store import RedisStore

        shared = RedisStore(
            settings.store,
            prefix=settings.store_prefix,
            limit=settings.conversations,
            timeout=settings.store_timeout,
            release=release is True,
            clock=self.clock,
        )
        return DegradingStore(
            shared,
            local,
            dropped=lambda frontier: self.leases.release_frontier(frontier),
            gauge=self.metrics.store_degraded,
            clock=self.clock,
        )

    def begin_drain(self) -> None:
        """Take no new turn; those in flight go on."""
        self.drain.begin()
        self.admission.drain()

    def reconfigure(self, settings: RouterSettings) -> None:
        """Let settings count that can change while turns run."""
        self.tenants.reload(settings)  # may refuse its keys, so it comes first
        self.settings = settings
        self.admission.resize(self._capacity(settings))
        self.upstream.retune(_timeouts(settings), keep_alive=settings.keep_alive)
        self.workers.retune(interval=settings.probe_interval, timeout=settings.probe_timeout)
        self.placement.retune(bound=settings.load_bound)
        retention = self._retention(settings)
        self.rooms.share = settings.keep_share
        self.leases.retune(retention, ttl=settings.lease_ttl, interval=settings.renew_interval)
        self.eviction.retune(
            retention, conversations=settings.conversations, per_tenant=settings.tenant_conversations
        )
        self.pressure.retune(
            timeout=settings.probe_timeout, high=settings.pressure_high, low=settings.pressure_low
        )
        self.responses.retune(settings.responses)
        for budget in self._budgets.values():
            budget.slowdown, budget.stall = settings.append_slowdown, settings.append_stall

    async def stop(self) -> None:
        """Let shielded legs end, release every lease, close connections."""
        if self._background:
            await asyncio.wait(self._background, timeout=self.settings.shutdown_grace)
        for task in self._background:
            task.cancel()
        await self.discovery.stop()
        await self.workers.stop()
        await self.pressure.stop()
        await self.conversations.settle()
        await self.leases.stop()
        await self.store.stop()
        await self.upstream.close()

    def _discovery_failed(self, role: str) -> None:
        self.metrics.discovery_failures.labels(role).inc()

    def append_budget(self, decode: str) -> AppendBudget:
        """What appends may cost the streams of a decode engine, by its name."""
        budget = self._budgets.get(decode)
        if budget is None:
            settings = self.settings
            budget = self._budgets[decode] = AppendBudget(settings.append_slowdown, settings.append_stall)
        return budget

    def _retention(self, settings: RouterSettings) -> Retention:
        return Retention(
            self.returns.chance, settings.keep, least_chance=settings.least_chance, saving=self._saving
        )

    def _capacity(self, settings: RouterSettings) -> Capacity:
        def turns() -> int:
            return settings.max_turns or TURNS_PER_DECODE * max(1, len(self.workers.decode))

        return Capacity(turns, settings.queue, settings.queue_timeout, settings.tenant_turns)

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that has to outlive its client."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _forget_old_life(self, worker: Worker) -> None:
        self._forget_measured(worker)
        if worker.epoch is None:
            return
        # Turns that met the new life before it was noticed have recorded its leases under the old one.
        dropped = [f for f in await self.store.held() if f.worker == worker.name and f.epoch != worker.epoch]
        await self.store.fence(worker.name, worker.epoch)
        for frontier in dropped:
            self.leases.release(worker, frontier.lease)

    def _forget_measured(self, worker: Worker) -> None:
        self.placement.pairs.forget(worker)
        self.rates.forget(worker.name)
        self._budgets.pop(worker.name, None)

    async def _forget_removed(self, worker: Worker) -> None:
        self._forget_measured(worker)
        held = [f for f in await self.store.held() if f.worker == worker.name]
        for frontier in await self.store.remove(held):
            self.leases.release(worker, frontier.lease)
        self.eviction.forget(worker)


def _timeouts(settings: RouterSettings) -> Timeouts:
    return Timeouts(settings.connect_timeout, settings.prefill_timeout, settings.idle_timeout)
