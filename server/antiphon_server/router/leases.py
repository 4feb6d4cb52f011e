"""Leases at the engines: release what nobody will read, renew what a conversation may still need.

Both are batched per engine and run in the background; a turn never waits for them. Releasing an unknown
lease is harmless, so a release is sent again after a failure; one that keeps failing is left to the
engine's own short lease.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence

import msgspec

from antiphon_server.protocol import LEASES_PATH, PROTOCOL, PROTOCOL_HEADER, LeaseReply, LeaseRequest, Renewal
from antiphon_server.router.connection import UpstreamError
from antiphon_server.router.frontier import Frontier, FrontierStore
from antiphon_server.router.metrics import Metrics
from antiphon_server.router.upstream import Timeouts, Upstream
from antiphon_server.router.workers import Worker, Workers

log = logging.getLogger(__name__)

_ATTEMPTS = 3
_BACKOFF = 0.2
_BATCH = 512
_LARGEST_REPLY = 4 * 1024 * 1024
_TIMEOUTS = Timeouts(connect=5.0, first=15.0, idle=15.0)


class LeaseRefusedError(Exception):
    """An engine answered a lease request with an error."""


class Leases:
    """``keep``: seconds a conversation may idle, ``share``: of an engine's KV that all may hold meanwhile.
    ``ttl``: seconds asked for. ``clock``: the router's own, monotonic."""

    def __init__(
        self,
        workers: Workers,
        store: FrontierStore,
        upstream: Upstream,
        metrics: Metrics,
        *,
        headers: Sequence[tuple[str, str]] = (),
        keep: float,
        share: float,
        ttl: float,
        interval: float,
        clock: Callable[[], float],
    ) -> None:
        self._workers = workers
        self._store = store
        self._upstream = upstream
        self._metrics = metrics
        self._headers = headers
        self._keep = keep
        self._share = share
        self._ttl = ttl
        self._interval = interval
        self._clock = clock
        self._waiting: dict[Worker, list[str]] = {}
        self._senders: dict[Worker, asyncio.Task[None]] = {}
        self._renewing: asyncio.Task[None] | None = None

    def release(self, worker: Worker | None, lease: str | None) -> None:
        """Let an engine free a lease's blocks, soon. Engines without leases free by their own clock."""
        if worker is None or lease is None or worker.info is None:
            return
        self._waiting.setdefault(worker, []).append(lease)
        if worker not in self._senders:
            self._senders[worker] = asyncio.create_task(self._send_waiting(worker))

    def release_frontier(self, frontier: Frontier) -> None:
        """Give up a conversation's KV, unless its engine has forgotten it by a restart."""
        worker = self._workers.find(frontier.worker)
        if worker is not None and worker.epoch == frontier.epoch:
            self.release(worker, frontier.lease)

    def budget(self, worker: str) -> int | None:
        """Tokens of a worker's KV that resting conversations may hold; None if its capacity is unknown."""
        found = self._workers.find(worker)
        capacity = found.info.capacity if found is not None and found.info is not None else 0
        return int(capacity * self._share) if capacity else None

    def abandon(self) -> None:
        """Count a lease whose blocks somebody may still be reading: it ends by the engine's clock."""
        self._metrics.leases.labels("abandoned").inc()

    def granted(self, worker: Worker) -> float:
        """Seconds that a decode engine keeps the blocks of a finished turn."""
        return worker.info.leases.decode if worker.info is not None else 0.0

    async def start(self) -> None:
        """Begin to renew."""
        self._renewing = asyncio.create_task(self._renew_for_ever())

    async def stop(self) -> None:
        """Release everything that is kept, and wait for it."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        for frontier in await self._store.remove(await self._store.held()):
            self.release_frontier(frontier)
        await self.flush()

    async def flush(self) -> None:
        """Until all releases asked for so far were sent, or given up."""
        while self._senders:
            await asyncio.gather(*self._senders.values(), return_exceptions=True)
            await asyncio.sleep(0)

    async def renew(self) -> None:
        """One round: give up the idle, renew the rest."""
        now = self._clock()
        idle = [f for f in await self._store.held() if now - f.idle_since > self._keep]
        for frontier in await self._store.remove(idle):
            self.release_frontier(frontier)
        held: dict[Worker, list[Frontier]] = {}
        for frontier in await self._store.held():
            worker = self._workers.find(frontier.worker)
            if worker is not None and worker.healthy and worker.epoch == frontier.epoch:
                held.setdefault(worker, []).append(frontier)
        batches = [(w, fs[i : i + _BATCH]) for w, fs in held.items() for i in range(0, len(fs), _BATCH)]
        await asyncio.gather(*(self._renew_batch(worker, batch) for worker, batch in batches))

    async def _renew_batch(self, worker: Worker, frontiers: list[Frontier]) -> None:
        ttl = min(self._ttl, worker.info.leases.longest) if worker.info is not None else self._ttl
        asked = self._clock()
        try:
            reply = await self._post(worker, LeaseRequest(renew=[Renewal(f.lease, ttl) for f in frontiers]))
        except (UpstreamError, LeaseRefusedError) as error:
            self._metrics.leases.labels("failed").inc(len(frontiers))
            log.warning("leases.renewal_failed", extra={"worker": worker.url, "error": str(error)})
            return
        for frontier in frontiers:
            deadline = reply.leases.get(frontier.lease, "unknown")
            if deadline == "unknown":
                self._metrics.leases.labels("unknown").inc()
                await self._store.remove([frontier])
                continue
            self._metrics.leases.labels("renewed").inc()
            renewed = dataclasses.replace(frontier, expiry=deadline, deadline=asked + ttl)
            await self._store.renewed(frontier, renewed)

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

    async def _send_waiting(self, worker: Worker) -> None:
        try:
            await asyncio.sleep(0)  # what is released in the same breath goes in one request
            while ids := self._waiting.pop(worker, None):
                for start in range(0, len(ids), _BATCH):
                    await self._send_release(worker, ids[start : start + _BATCH])
        finally:
            del self._senders[worker]

    async def _send_release(self, worker: Worker, ids: list[str]) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                await self._post(worker, LeaseRequest(release=ids))
            except (UpstreamError, LeaseRefusedError) as error:
                if attempt + 1 == _ATTEMPTS:
                    self._metrics.leases.labels("failed").inc(len(ids))
                    log.warning("leases.release_failed", extra={"worker": worker.url, "error": str(error)})
                    return
                await asyncio.sleep(_BACKOFF * 2**attempt)
            else:
                self._metrics.leases.labels("released").inc(len(ids))
                return

    async def _post(self, worker: Worker, request: LeaseRequest) -> LeaseReply:
        headers = ((PROTOCOL_HEADER, str(PROTOCOL)), ("Content-Type", "application/json"), *self._headers)
        response = await self._upstream.send(
            worker.origin,
            "POST",
            LEASES_PATH,
            headers=headers,
            body=msgspec.json.encode(request),
            timeouts=_TIMEOUTS,
            repeat=True,
        )
        try:
            body = await response.read(_LARGEST_REPLY)
        finally:
            response.close()
        if response.status != 200:
            raise LeaseRefusedError(f"{LEASES_PATH} answers {response.status}")
        try:
            return msgspec.json.decode(body, type=LeaseReply)
        except msgspec.DecodeError as error:
            raise LeaseRefusedError(f"{LEASES_PATH} answers something else: {error}") from error
