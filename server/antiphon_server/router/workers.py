"""Engines as the router knows them: role, health, life (epoch) and what they can do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Literal

import msgspec

from antiphon_server.protocol import INFO_PATH, PROTOCOL, PROTOCOL_HEADER, Info
from antiphon_server.router.connection import UnsentError, UpstreamError
from antiphon_server.router.plan import EngineState
from antiphon_server.router.upstream import Origin, Timeouts, Upstream

log = logging.getLogger(__name__)

Role = Literal["prefill", "decode"]
_LARGEST_INFO = 1024 * 1024
_EAGER = 0.5
"""Seconds between two probes of an engine that does not answer, at most: a stack that starts should not
wait."""


class Worker:
    """One engine. ``in_flight``: legs it has now. ``info``: None while unknown, and for good on a stock
    engine."""

    def __init__(self, url: str, role: Role) -> None:
        self.url = url
        self.role = role
        self.origin = Origin.parse(url)
        self.healthy = False
        self.stock = False
        self.info: Info | None = None
        self.in_flight = 0
        self.missed = 0
        self.suspected = asyncio.Event()

    @property
    def reuse(self) -> bool:
        """May send or take handles for reuse."""
        return self.info is not None and self.info.reuse

    @property
    def epoch(self) -> str | None:
        """Which life of the engine this is."""
        return self.info.epoch if self.info is not None else None

    @property
    def state(self) -> EngineState:
        """What a plan needs to know."""
        return EngineState(self.healthy, self.epoch, self.stock, self.reuse)


_MISSES = 3
"""Probes that a busy engine may leave unanswered before it is taken out."""

Restarted = Callable[[Worker], Awaitable[None]]


class Workers:
    """All engines, probed every few seconds and at once when a leg failed."""

    def __init__(
        self,
        prefill: Sequence[str],
        decode: Sequence[str],
        upstream: Upstream,
        *,
        headers: Sequence[tuple[str, str]] = (),
        interval: float = 5.0,
        timeout: float = 5.0,
        restarted: Restarted | None = None,
    ) -> None:
        self.prefill = [Worker(url, "prefill") for url in prefill]
        self.decode = [Worker(url, "decode") for url in decode]
        self._upstream = upstream
        self._headers = headers
        self._interval = interval
        self._timeouts = Timeouts(timeout, timeout, timeout)
        self._restarted = restarted
        self._tasks: list[asyncio.Task[None]] = []

    def __iter__(self) -> Iterator[Worker]:
        return iter([*self.prefill, *self.decode])

    def find(self, url: str) -> Worker | None:
        """The decode engine at ``url``."""
        return next((worker for worker in self.decode if worker.url == url), None)

    @property
    def ready(self) -> bool:
        """At least one engine of each role answers."""
        return any(w.healthy for w in self.prefill) and any(w.healthy for w in self.decode)

    async def start(self) -> None:
        """Probe all once, then keep probing in the background."""
        await asyncio.gather(*(self.probe(worker) for worker in self))
        self._tasks = [asyncio.create_task(self._watch(worker)) for worker in self]

    async def stop(self) -> None:
        """End the background probes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def suspect(self, worker: Worker, *, gone: bool = False) -> None:
        """A leg failed: probe now. ``gone``: it refuses connections, so take it out until it answers."""
        if gone:
            self._set_health(worker, False, "refuses connections")
        worker.suspected.set()

    async def probe(self, worker: Worker) -> None:
        """Ask for health and info; notice a new life."""
        try:
            status, _ = await self._get(worker, "/health")
            if status != 200:
                self._set_health(worker, False, f"/health answers {status}")
                return
            await self._learn(worker)
        except UpstreamError as error:
            worker.missed += 1
            refused = isinstance(error, UnsentError) and error.refused
            if refused or worker.missed >= _MISSES:
                self._set_health(worker, False, str(error))
            return
        worker.missed = 0
        self._set_health(worker, True, "")

    async def _learn(self, worker: Worker) -> None:
        status, body = await self._get(worker, INFO_PATH)
        info = None
        if status == 200:
            try:
                info = msgspec.json.decode(body, type=Info)
            except msgspec.DecodeError as error:
                log.error("engine.info_malformed", extra={"worker": worker.url, "error": str(error)})
            if info is not None and info.protocol != PROTOCOL:
                log.error("engine.protocol_differs", extra={"worker": worker.url, "protocol": info.protocol})
                info = None
        elif status in {401, 403}:
            remedy = "set ANTIPHON_ENGINE_KEY to the engine's key"
            log.error("engine.key_refused", extra={"worker": worker.url, "remedy": remedy})
        if info is None and not worker.stock:
            log.warning(
                "engine.stock", extra={"worker": worker.url, "role": worker.role, "served_as": "plain P/D"}
            )
        if info is not None and not info.reuse and (worker.info is None or worker.info.reuse):
            log.warning("engine.no_reuse", extra={"worker": worker.url, "reason": info.reuse_reason})
        if info is not None and info.role not in {worker.role, "both"}:
            log.error(
                "engine.role_differs", extra={"worker": worker.url, "named": worker.role, "is": info.role}
            )
        before = worker.epoch
        worker.info, worker.stock = info, info is None
        if before is not None and worker.epoch != before:
            log.warning("engine.restarted", extra={"worker": worker.url, "role": worker.role})
            if self._restarted is not None:
                await self._restarted(worker)

    async def _get(self, worker: Worker, path: str) -> tuple[int, bytes]:
        headers = ((PROTOCOL_HEADER, str(PROTOCOL)), *self._headers)
        response = await self._upstream.send(
            worker.origin, "GET", path, headers=headers, timeouts=self._timeouts, fresh=True
        )
        try:
            return response.status, await response.read(_LARGEST_INFO)
        finally:
            response.close()

    def _set_health(self, worker: Worker, healthy: bool, cause: str) -> None:
        if worker.healthy != healthy:
            worker.healthy = healthy
            level = logging.INFO if healthy else logging.WARNING
            event = "engine.up" if healthy else "engine.down"
            log.log(level, event, extra={"worker": worker.url, "role": worker.role, "cause": cause})

    async def _watch(self, worker: Worker) -> None:
        while True:
            pause = self._interval if worker.healthy else min(self._interval, _EAGER)
            try:
                async with asyncio.timeout(pause):
                    await worker.suspected.wait()
            except TimeoutError:
                pass
            worker.suspected.clear()
            await self.probe(worker)
