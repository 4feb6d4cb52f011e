"""Memory pressure on decode engines, read from their metrics: kept KV goes before requests have to wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from antiphon_server.router.fleet.worker import Pressure, Worker
from antiphon_server.router.fleet.workers import Workers
from antiphon_server.router.keep.eviction import Eviction
from antiphon_server.router.keep.leases import Leases
from antiphon_server.router.keep.retention import Cause
from antiphon_server.router.upstream.connection import UpstreamError
from antiphon_server.router.upstream.upstream import Timeouts, Upstream

log = logging.getLogger(__name__)

_USAGE = b"vllm:kv_cache_usage_perc"
_WAITING = b"vllm:num_requests_waiting"
_BY_REASON = b"vllm:num_requests_waiting_by_reason"
_LARGEST = 16 * 1024 * 1024
_STEP = 0.1
"""Of an engine's KV: given up at each reading while requests wait though usage is low."""


def read(exposition: bytes, rank: int | None, at: float) -> Pressure | None:
    """The reading in an engine's ``/metrics``, of one data-parallel rank or of the fullest; None if it has
    none."""
    usage = [value for _, value in _samples(exposition, _USAGE, rank)]
    if not usage:
        return None
    # Requests that wait for a transfer are waiting too, but more room would not help them.
    waiting = [value for labels, value in _samples(exposition, _BY_REASON, rank) if b'"capacity"' in labels]
    if not waiting:
        waiting = [value for _, value in _samples(exposition, _WAITING, rank)]
    return Pressure(max(usage), int(sum(waiting)), at)


def excess(now: Pressure, before: Pressure | None, *, high: float, low: float) -> float:
    """Share of the engine's KV to give up; 0 if there is no need.

    ``high``: usage at which kept KV goes, down to ``low``. It goes as well while requests wait. Where those
    wait at two readings although usage is low, they may need more than is free: then it goes step by step.
    """
    if now.usage >= high or (now.waiting and now.usage > low):
        return now.usage - low
    if now.waiting and before is not None and before.waiting:
        return _STEP
    return 0.0


class PressureWatch:
    """Reads every decode engine each ``interval`` seconds (0: never), leaves the reading on the worker as
    ``pressure``, and gives up what is worth least where it has to."""

    def __init__(
        self,
        workers: Workers,
        upstream: Upstream,
        eviction: Eviction,
        leases: Leases,
        *,
        headers: Sequence[tuple[str, str]] = (),
        interval: float,
        timeout: float,
        high: float,
        low: float,
        clock: Callable[[], float],
    ) -> None:
        self._workers = workers
        self._upstream = upstream
        self._eviction = eviction
        self._leases = leases
        self._headers = headers
        self._interval = interval
        self._timeouts = Timeouts(timeout, timeout, timeout)
        self._high = high
        self._low = low
        self._clock = clock
        self._silent: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def retune(self, *, timeout: float, high: float, low: float) -> None:
        """Go by other limits from the next look on."""
        self._timeouts = Timeouts(timeout, timeout, timeout)
        self._high = high
        self._low = low

    async def start(self) -> None:
        """Begin to watch."""
        if self._interval > 0:
            self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Read every engine once, and relieve those that need it."""
        engines: dict[str, list[Worker]] = {}
        for worker in self._workers.decode:
            if worker.healthy:
                engines.setdefault(worker.url, []).append(worker)
            else:
                worker.pressure = None
        self._silent &= set(engines)
        await asyncio.gather(*(self._look_at(ranks) for ranks in engines.values()))

    async def _look_at(self, ranks: list[Worker]) -> None:
        exposition = await self._read(ranks[0])
        for worker in ranks:
            before = worker.pressure
            worker.pressure = now = None
            if exposition is not None:
                worker.pressure = now = read(exposition, worker.rank, self._clock())
                self._note(worker, now)
            if now is not None:
                await self._relieve(worker, now, before)

    async def _relieve(self, worker: Worker, now: Pressure, before: Pressure | None) -> None:
        capacity = worker.info.capacity if worker.info is not None else 0
        tokens = int(capacity * excess(now, before, high=self._high, low=self._low))
        if tokens <= 0:
            return
        victims = await self._eviction.relieve(worker, tokens, Cause.PRESSURE)
        if not victims:
            return
        log.info(
            "pressure.relieved",
            extra={
                "worker": worker.name,
                "usage": round(now.usage, 3),
                "waiting": now.waiting,
                "conversations": len(victims),
                "tokens": sum(frontier.tokens for frontier in victims),
            },
        )
        pending = self._leases.pending(worker, hurry=True)
        if pending is not None:  # the next reading has to show what this one did
            await asyncio.wait({pending}, timeout=self._timeouts.first)

    def _note(self, worker: Worker, now: Pressure | None) -> None:
        """Say once that an engine does not tell."""
        if now is not None:
            self._silent.discard(worker.url)
        elif worker.url not in self._silent:
            self._silent.add(worker.url)
            remedy = "nothing is given up early there; let the engine expose its metrics"
            log.warning(
                "pressure.unknown",
                extra={"worker": worker.url, "metric": _USAGE.decode(), "remedy": remedy},
            )

    async def _read(self, worker: Worker) -> bytes | None:
        """Body of the engine's metrics, empty where it has none; None if it did not answer."""
        try:
            response = await self._upstream.send(
                worker.origin, "GET", "/metrics", headers=self._headers, timeouts=self._timeouts, repeat=True
            )
            try:
                body = await response.read(_LARGEST)
            finally:
                response.close()
        except UpstreamError:
            return None  # probes deal with that
        return body if response.status == 200 else b""

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.look()
            except Exception:
                log.exception("pressure.round_failed")


def _samples(exposition: bytes, name: bytes, rank: int | None) -> Iterator[tuple[bytes, float]]:
    """Labels and value of each sample of one metric. Engines' metrics are large, and read often: only the
    lines in question are looked at."""
    own = b'engine="%d"' % rank if rank is not None else b""
    start = 0 if exposition.startswith(name) else exposition.find(b"\n" + name) + 1
    while start or exposition.startswith(name):
        end = exposition.find(b"\n", start)
        line = exposition[start : end if end >= 0 else len(exposition)]
        rest = line[len(name) :]
        if rest[:1] in (b"{", b" "):
            labels, _, value = rest.rpartition(b" ")
            if own in labels:
                with contextlib.suppress(ValueError):
                    yield labels, float(value)
        start = exposition.find(b"\n" + name, start) + 1
        if not start:
            return
