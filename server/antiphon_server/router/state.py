"""What all turns of a router share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from antiphon_server.router.conversations import Conversations
from antiphon_server.router.frontier import FrontierStore, MemoryStore
from antiphon_server.router.leases import Leases
from antiphon_server.router.metrics import Metrics
from antiphon_server.router.placement import Placement
from antiphon_server.router.settings import RouterSettings
from antiphon_server.router.tenants import Tenants
from antiphon_server.router.upstream import Timeouts, Upstream
from antiphon_server.router.workers import Worker, Workers


class State:
    """Built once an app; ``start`` and ``stop`` belong to its lifespan."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        store: FrontierStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.metrics = Metrics()
        self.tenants = Tenants(settings)
        self.store = store if store is not None else MemoryStore(settings.conversations)
        self.placement = Placement(settings.conversations)
        self.upstream = Upstream(
            Timeouts(settings.connect_timeout, settings.prefill_timeout, settings.idle_timeout),
            keep_alive=settings.keep_alive,
        )
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
            restarted=self._forget_old_life,
        )
        self.leases = Leases(
            self.workers,
            self.store,
            self.upstream,
            self.metrics,
            headers=self.engine_headers,
            keep=settings.keep,
            share=settings.keep_share,
            ttl=settings.lease_ttl,
            interval=settings.renew_interval,
            clock=clock,
        )
        self.conversations = Conversations(self.store, self.placement, self.leases)
        self._background: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Learn about the engines; begin to probe and to renew."""
        await self.store.start()
        await self.workers.start()
        await self.leases.start()

    async def stop(self) -> None:
        """Let shielded legs end, release every lease, close connections."""
        if self._background:
            await asyncio.wait(self._background, timeout=self.settings.shutdown_grace)
        for task in self._background:
            task.cancel()
        await self.workers.stop()
        await self.leases.stop()
        await self.store.stop()
        await self.upstream.close()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that has to outlive its client."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _forget_old_life(self, worker: Worker) -> None:
        held = await self.store.held()
        await self.store.remove([f for f in held if f.worker == worker.url and f.epoch != worker.epoch])
