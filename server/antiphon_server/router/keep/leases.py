"""Leases at the engines: release what nobody will read, renew what a conversation may still need.

Both run in the background; a turn never waits for them. A router that dies costs the engines no more than one
lease's time of memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable

from antiphon_server.protocol import LeaseRequest, Renewal
from antiphon_server.router.fleet.workers import Worker, Workers
from antiphon_server.router.keep.releases import BATCH, GATHER, LeaseCalls, LeaseRefusedError, Releases
from antiphon_server.router.keep.retention import Cause, Retention
from antiphon_server.router.keep.room import Rooms
from antiphon_server.router.metrics import Metrics
from antiphon_server.router.store.frontier import Frontier, FrontierStore
from antiphon_server.router.upstream.connection import UpstreamError

log = logging.getLogger(__name__)

_SLICE = 64
"""Renewed leases that are noted in one go: half a millisecond, in which streams wait."""
_GRACE = 10.0
"""Seconds that a router which stops waits for engines to answer its releases."""


class Leases:
    """``retention``: what is worth renewing. ``ttl``: seconds asked for, every ``interval``. ``clock``: the
    router's own, monotonic."""

    def __init__(
        self,
        workers: Workers,
        store: FrontierStore,
        calls: LeaseCalls,
        metrics: Metrics,
        rooms: Rooms,
        retention: Retention,
        *,
        ttl: float,
        interval: float,
        clock: Callable[[], float],
        gather: float = GATHER,
    ) -> None:
        self._workers = workers
        self._store = store
        self._calls = calls
        self._metrics = metrics
        self._rooms = rooms
        self._retention = retention
        self._ttl = ttl
        self._interval = interval
        self._clock = clock
        self._releases = Releases(calls, metrics, gather)
        self._noting = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    def retune(self, retention: Retention, *, ttl: float, interval: float) -> None:
        """Go by other limits from the next round on."""
        self._retention = retention
        self._ttl = ttl
        self._interval = interval

    def release(self, worker: Worker | None, lease: str | None) -> asyncio.Future[bool] | None:
        """Let an engine free a lease's blocks, soon: the future tells when it has. Engines without leases
        free by their own clock."""
        if worker is None or lease is None or worker.stock:
            return None
        return self._releases.add(worker, lease)

    def release_leg(self, worker: Worker, leg: str) -> None:
        """Let an engine free what a leg keeps that was given up before it said what that is: it may have
        finished while its client left. ``leg``: its request id."""
        if worker.engine.names_legs:
            self._releases.add_leg(worker, leg)

    def release_frontier(self, frontier: Frontier) -> asyncio.Future[bool] | None:
        """Give up a conversation's KV. Its engine is asked even if it seems to have restarted: another router
        may have noticed a later life of it first, and what an engine forgot is released without harm."""
        worker = self._workers.known(frontier.worker)
        done = self.release(worker, frontier.lease)
        if worker is None or done is None or worker.epoch not in (None, frontier.epoch):
            return done
        # A release that fails leaves the blocks pinned until the lease ends.
        self._rooms.loosen(worker, frontier.lease, frontier.tokens, frontier.deadline, leaving=True)
        done.add_done_callback(lambda f: self._rooms.freed(worker, frontier.lease) if f.result() else None)
        return done

    async def give_up(self, frontiers: Iterable[Frontier], cause: Cause) -> list[Frontier]:
        """Remove these from the store and release them. Returns those that were still there."""
        removed = await self._store.remove(frontiers)
        for frontier in removed:
            self.release_frontier(frontier)
        if removed:
            self._metrics.evictions.labels(cause.value).inc(len(removed))
        return removed

    def pending(self, worker: Worker, *, hurry: bool = False) -> asyncio.Future[bool] | None:
        """When an engine has answered all releases asked for so far; None if it has. ``hurry``: send them at
        once, for somebody waits."""
        if hurry:
            self._releases.hurry(worker)
        return self._releases.pending(worker)

    def abandon(self, frontier: Frontier | None = None) -> None:
        """Count a lease whose blocks somebody may still be reading: it ends by the engine's clock."""
        self._metrics.leases.labels("abandoned").inc()
        worker = self._workers.find(frontier.worker) if frontier is not None else None
        if frontier is not None and worker is not None and worker.epoch == frontier.epoch:
            self._rooms.loosen(worker, frontier.lease, frontier.tokens, frontier.deadline, leaving=True)

    def granted(self, worker: Worker) -> float:
        """Seconds that a decode engine keeps the blocks of a finished turn."""
        return worker.info.leases.decode if worker.info is not None else 0.0

    async def start(self) -> None:
        """Begin to renew."""
        self._renewing = asyncio.create_task(self._renew_for_ever())

    async def stop(self) -> None:
        """Release what nobody else keeps alive, and wait for it."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        for frontier in await self._store.leave():
            self.release_frontier(frontier)
        try:
            async with asyncio.timeout(_GRACE):
                await self.flush()
        except TimeoutError:
            log.warning(
                "leases.left_behind", extra={"remedy": "none needed: engines end them by their clock"}
            )

    async def flush(self) -> None:
        """Until all releases asked for so far were sent, or given up."""
        await self._releases.flush()

    async def renew(self) -> None:
        """One round: give up the idle and what has lapsed, renew what is worth it."""
        now = self._clock()
        idle: list[Frontier] = []
        lapsed: dict[Cause, list[Frontier]] = {Cause.CHANCE: [], Cause.EXPIRED: []}
        wanted: dict[Worker, list[Frontier]] = {}
        for count, frontier in enumerate(await self._store.held(), 1):
            if count % BATCH == 0:
                await asyncio.sleep(0)  # turns go first
            if self._retention.outstayed(frontier, now):
                idle.append(frontier)
                continue
            hopeful = self._retention.hopeful(frontier, now)
            if frontier.deadline <= now:
                lapsed[Cause.EXPIRED if hopeful else Cause.CHANCE].append(frontier)
                continue
            worker = self._workers.find(frontier.worker)
            if hopeful and worker is not None and worker.healthy and worker.epoch == frontier.epoch:
                wanted.setdefault(worker, []).append(frontier)
        await self.give_up(idle, Cause.IDLE)
        for cause, frontiers in lapsed.items():
            await self.give_up(frontiers, cause)
        async with asyncio.TaskGroup() as group:
            for worker, frontiers in wanted.items():
                for start in range(0, len(frontiers), BATCH):
                    group.create_task(self._renew_batch(worker, frontiers[start : start + BATCH]))
                    await asyncio.sleep(0)

    async def _renew_batch(self, worker: Worker, frontiers: list[Frontier]) -> None:
        ttl = min(self._ttl, worker.info.leases.longest) if worker.info is not None else self._ttl
        asked = self._clock()
        try:
            request = LeaseRequest(renew=[Renewal(f.lease, ttl) for f in frontiers])
            reply = await self._calls.post(worker, request)
        except (UpstreamError, LeaseRefusedError) as error:
            self._metrics.leases.labels("failed").inc(len(frontiers))
            log.warning("leases.renewal_failed", extra={"worker": worker.name, "error": str(error)})
            return
        unknown: list[Frontier] = []
        async with self._noting:  # many replies come at once
            for count, frontier in enumerate(frontiers, 1):
                if count % _SLICE == 0:
                    await asyncio.sleep(0)
                deadline = reply.leases.get(frontier.lease, "unknown")
                if deadline == "unknown":
                    unknown.append(frontier)
                    continue
                renewed = dataclasses.replace(frontier, expiry=deadline, deadline=asked + ttl)
                await self._store.renewed(frontier, renewed)
        await self._store.remove(unknown)
        self._metrics.leases.labels("unknown").inc(len(unknown))
        self._metrics.leases.labels("renewed").inc(len(frontiers) - len(unknown))

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._pause())
            try:
                await self.renew()
            except Exception:
                log.exception("leases.round_failed")

    def _pause(self) -> float:
        """Well below the shortest lease that any decode engine grants."""
        granted = [
            limit
            for w in self._workers.decode
            if w.info
            for limit in (w.info.leases.decode, w.info.leases.longest)
        ]
        return max(0.05, min([self._interval, *(limit / 4 for limit in granted)]))
