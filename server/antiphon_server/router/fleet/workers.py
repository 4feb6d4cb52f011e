"""The fleet: engines that come, go and fail; each is probed by itself, so a dead one holds up no other."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from antiphon_server.protocol import INFO_PATH, PROTOCOL, PROTOCOL_HEADER, Info
from antiphon_server.router.fleet.breaker import Breaker, BreakerPolicy, BreakerState
from antiphon_server.router.fleet.worker import Engine, Role, Worker
from antiphon_server.router.upstream.connection import TimedOutError, UnsentError, UpstreamError
from antiphon_server.router.upstream.upstream import Origin, Timeouts, Upstream

__all__ = ["DuplicateEngineError", "Engine", "Listed", "Role", "UnknownEngineError", "Worker", "Workers"]

log = logging.getLogger(__name__)

_LARGEST_INFO = 1024 * 1024
_EAGER = 0.5
"""Seconds between two probes of an engine that does not answer, at most: a stack that starts should not
wait."""
_MISSES = 3
"""Probes that a busy engine may leave unanswered before it is taken out."""
_LEFT = 256
"""Workers that are remembered after they have left."""

Watch = Callable[[Worker], Awaitable[None]]


class DuplicateEngineError(ValueError):
    """The engine is in the fleet already."""


class UnknownEngineError(LookupError):
    """The engine is not in the fleet."""


class Listed(msgspec.Struct, frozen=True):
    """An engine as operators see it. ``workers``: its names, one for each data-parallel rank."""

    role: Role
    url: str
    healthy: bool
    draining: bool
    breaker: BreakerState
    stock: bool
    reuse: bool
    in_flight: int
    workers: tuple[str, ...]
    model: str | None = None
    vllm: str | None = None
    epoch: str | None = None


class Workers:
    """All engines of a router. Each is probed every few seconds and at once when a leg failed.

    ``restarted``: a worker's life became known, its first one here or a new one; what KV an earlier life had
    is gone. ``removed``: a worker left the fleet. ``version`` changes with the set of workers.
    """

    def __init__(
        self,
        prefill: Sequence[str],
        decode: Sequence[str],
        upstream: Upstream,
        *,
        headers: Sequence[tuple[str, str]] = (),
        interval: float = 5.0,
        timeout: float = 5.0,
        breaker: BreakerPolicy | None = None,
        restarted: Watch | None = None,
        removed: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.version = 0
        self.prefill: list[Worker] = []
        self.decode: list[Worker] = []
        self._upstream = upstream
        self._headers = headers
        self._interval = interval
        self._timeouts = Timeouts(timeout, timeout, timeout)
        self._policy = breaker if breaker is not None else BreakerPolicy()
        self._restarted = restarted
        self._removed = removed
        self._clock = clock
        self._draw = draw
        self._engines: dict[tuple[str, int, str], Engine] = {}
        self._names: dict[str, Worker] = {}
        self._left: dict[str, Worker] = {}
        self._tasks: dict[Engine, asyncio.Task[None]] = {}
        self._running = False
        self._prefilled = False
        for url in prefill:
            self._enlist("prefill", url)
        for url in decode:
            self._enlist("decode", url)

    def retune(self, *, interval: float, timeout: float) -> None:
        """Go by other limits from the next probes on."""
        self._interval = interval
        self._timeouts = Timeouts(timeout, timeout, timeout)

    @property
    def text_only(self) -> bool:
        """All engines say so."""
        engines = self._engines.values()
        return bool(engines) and all(engine.text_only for engine in engines)

    def __iter__(self) -> Iterator[Worker]:
        return iter([*self.prefill, *self.decode])

    @property
    def engines(self) -> Sequence[Engine]:
        """Every engine, of both roles."""
        return tuple(self._engines.values())

    def find(self, name: str) -> Worker | None:
        """The worker of that name: an engine's URL, or ``url#rank``."""
        return self._names.get(name)

    def known(self, name: str) -> Worker | None:
        """The same, also if it has left: what turns had taken there may still have to be released."""
        return self._names.get(name) or self._left.get(name)

    def of(self, role: Role) -> Sequence[Worker]:
        """All workers of a role."""
        return self.prefill if role == "prefill" else self.decode

    def list(self) -> tuple[Listed, ...]:
        """Every engine, as operators see it."""
        return tuple(self._listed(engine) for engine in self._engines.values())

    @property
    def ready(self) -> bool:
        """A decode engine answers, and a prefill engine does or did: decode can go on without, and a router
        that took itself out for that would make an outage of it."""
        return self._prefilled and any(w.healthy for w in self.decode)

    async def start(self) -> None:
        """Probe all once, then keep probing in the background."""
        self._running = True
        for engine in self.engines:
            self._watch(engine)
        await asyncio.gather(*(engine.probed.wait() for engine in self.engines))

    async def stop(self) -> None:
        """End the background probes."""
        self._running = False
        for engine in self.engines:
            engine.probed.set()
        tasks = [*self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def add(self, role: Role, url: str) -> None:
        """Take an engine into the fleet; returns once it was probed, whether it answered or not.

        Raises:
            DuplicateEngineError: it is there already.
            ValueError: not an engine's URL.
        """
        engine = self._enlist(role, url)
        log.info("engine.added", extra={"worker": engine.url, "role": role})
        if self._running:
            self._watch(engine)
            await engine.probed.wait()

    def drain(self, role: Role, url: str) -> None:
        """No new turn for this engine. It finishes what it has, and its KV may still be pulled.

        Raises:
            UnknownEngineError
        """
        self._named(role, url).draining = True
        log.info("engine.draining", extra={"worker": url, "role": role})

    def undrain(self, role: Role, url: str) -> None:
        """Take back :meth:`drain`.

        Raises:
            UnknownEngineError
        """
        self._named(role, url).draining = False
        log.info("engine.undrained", extra={"worker": url, "role": role})

    async def remove(self, role: Role, url: str) -> None:
        """Forget an engine. Legs that it has now go on; nothing of it is used afterwards.

        Raises:
            UnknownEngineError
        """
        engine = self._named(role, url)
        del self._engines[_address(engine.origin)]
        workers, engine.workers = engine.workers, ()
        self._left.update((worker.name, worker) for worker in workers)
        while len(self._left) > _LEFT:
            del self._left[next(iter(self._left))]
        self._changed()
        engine.probed.set()
        task = self._tasks.pop(engine, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        log.info("engine.removed", extra={"worker": engine.url, "role": role})
        await self._tell(self._removed, workers)

    def suspect(self, worker: Worker, *, gone: bool = False) -> None:
        """A leg failed: probe now. ``gone``: it refuses connections, so take it out until it answers."""
        if gone:
            self._set_health(worker.engine, False, "refuses connections")
        worker.engine.suspected.set()

    async def probe(self, worker: Worker) -> None:
        """Ask for health and info; notice a new life."""
        await self._probe(worker.engine)

    async def _probe(self, engine: Engine) -> None:
        try:
            status, _ = await self._get(engine, "/health")
            if status != 200:
                self._set_health(engine, False, f"/health answers {status}")
                return
            if not await self._learn(engine):
                self._set_health(engine, False, f"{INFO_PATH} fails")
                return
        except UpstreamError as error:
            engine.missed += 1
            refused = isinstance(error, UnsentError) and error.refused
            if refused or engine.missed >= _MISSES:
                self._set_health(engine, False, str(error))
            return
        engine.missed = 0
        self._set_health(engine, True, "")

    async def _learn(self, engine: Engine) -> bool:
        """Ask what it is. False if that is not known: a stock engine has no such path, and answers so."""
        status, body = await self._get(engine, INFO_PATH)
        if status >= 500 or status == 429:
            return engine.info is not None  # trouble is no reason to give up what it holds
        info = self._read_info(engine, status, body)
        if info is None and not engine.stock:
            log.warning(
                "engine.stock", extra={"worker": engine.url, "role": engine.role, "served_as": "plain P/D"}
            )
        before = engine.info
        if info is not None and (before is None or info.epoch != before.epoch):
            self._greet(engine, info)
        engine.info, engine.stock = info, info is None
        gone = self._set_ranks(engine)
        if before is not None and (info is None or info.epoch != before.epoch):
            log.warning("engine.restarted", extra={"worker": engine.url, "role": engine.role})
            engine.breaker.reset()
            await self._tell(self._restarted, (*engine.workers, *gone))
        elif before is None and info is not None:  # it may have lived before, with other routers
            await self._tell(self._restarted, engine.workers)
        return True

    def _read_info(self, engine: Engine, status: int, body: bytes) -> Info | None:
        if status in {401, 403}:
            remedy = "set ANTIPHON_ENGINE_KEY to the engine's key"
            log.error("engine.key_refused", extra={"worker": engine.url, "remedy": remedy})
        if status != 200:
            return None
        try:
            info = msgspec.json.decode(body, type=Info)
        except msgspec.DecodeError as error:
            log.error("engine.info_malformed", extra={"worker": engine.url, "error": str(error)})
            return None
        if info.protocol != PROTOCOL:
            log.error("engine.protocol_differs", extra={"worker": engine.url, "protocol": info.protocol})
            return None
        return info

    def _greet(self, engine: Engine, info: Info) -> None:
        if not info.reuse:
            log.warning("engine.no_reuse", extra={"worker": engine.url, "reason": info.reuse_reason})
        if info.role not in {engine.role, "both"}:
            log.error(
                "engine.role_differs", extra={"worker": engine.url, "named": engine.role, "is": info.role}
            )

    def _set_ranks(self, engine: Engine) -> tuple[Worker, ...]:
        """One worker a rank. Those that stay are the same objects; returns those that are gone."""
        ranks: list[int | None] = [None] if engine.ranks == 1 else [*range(engine.ranks)]
        if [worker.rank for worker in engine.workers] == ranks:
            return ()
        old = {worker.rank: worker for worker in engine.workers}
        engine.workers = tuple(old.get(rank) or Worker(engine, rank, self._clock) for rank in ranks)
        if self._engines.get(_address(engine.origin)) is engine:
            self._changed()
        return tuple(worker for rank, worker in old.items() if rank not in ranks)

    async def _get(self, engine: Engine, path: str) -> tuple[int, bytes]:
        headers = ((PROTOCOL_HEADER, str(PROTOCOL)), *self._headers)
        limit = self._timeouts.connect + self._timeouts.first
        try:
            async with asyncio.timeout(limit):
                response = await self._upstream.send(
                    engine.origin, "GET", path, headers=headers, timeouts=self._timeouts, fresh=True
                )
                try:
                    return response.status, await response.read(_LARGEST_INFO)
                finally:
                    response.close()
        except TimeoutError:
            raise TimedOutError(f"{engine.origin.authority}: {path} took more than {limit:g} s") from None

    def _set_health(self, engine: Engine, healthy: bool, cause: str) -> None:
        if engine.healthy != healthy:
            engine.healthy = healthy
            self._prefilled = self._prefilled or (healthy and engine.role == "prefill")
            if healthy:  # what failed while it was down needs no further pause
                engine.breaker.hasten(self._clock())
            level = logging.INFO if healthy else logging.WARNING
            event = "engine.up" if healthy else "engine.down"
            log.log(level, event, extra={"worker": engine.url, "role": engine.role, "cause": cause})

    def _enlist(self, role: Role, url: str) -> Engine:
        url = url.rstrip("/")
        engine = Engine(url, role, Breaker(self._policy, self._draw))
        there = self._engines.get(_address(engine.origin))
        if there is not None:
            raise DuplicateEngineError(
                f"engine {url} is in the fleet already, for {there.role}: name each engine once"
            )
        self._engines[_address(engine.origin)] = engine
        self._set_ranks(engine)
        return engine

    def _named(self, role: Role, url: str) -> Engine:
        engine = self._engines.get(_address(Origin.parse(url)))
        if engine is None or engine.role != role:
            known = ", ".join(e.url for e in self._engines.values() if e.role == role) or "none"
            raise UnknownEngineError(f"no {role} engine {url} in the fleet: name one of {known}")
        return engine

    def _changed(self) -> None:
        self.prefill = [w for e in self._engines.values() if e.role == "prefill" for w in e.workers]
        self.decode = [w for e in self._engines.values() if e.role == "decode" for w in e.workers]
        self._names = {worker.name: worker for worker in self}
        self.version += 1

    def _listed(self, engine: Engine) -> Listed:
        info = engine.info
        return Listed(
            engine.role,
            engine.url,
            engine.healthy,
            engine.draining,
            engine.breaker.state(self._clock()),
            engine.stock,
            info is not None and info.reuse,
            sum(worker.in_flight for worker in engine.workers),
            tuple(worker.name for worker in engine.workers),
            info.model if info is not None else None,
            info.vllm if info is not None else None,
            info.epoch if info is not None else None,
        )

    async def _tell(self, watch: Watch | None, workers: Sequence[Worker]) -> None:
        if watch is None:
            return
        for worker in workers:
            try:
                await watch(worker)
            except Exception:
                log.exception("engine.watch_failed", extra={"worker": worker.name})

    def _watch(self, engine: Engine) -> None:
        self._tasks[engine] = asyncio.create_task(self._watch_for_ever(engine))

    async def _watch_for_ever(self, engine: Engine) -> None:
        while True:
            try:
                await self._probe(engine)
            except Exception:
                log.exception("engine.probe_failed", extra={"worker": engine.url})
            finally:
                engine.probed.set()
            pause = self._interval if engine.healthy else min(self._interval, _EAGER)
            try:
                async with asyncio.timeout(pause):
                    await engine.suspected.wait()
            except TimeoutError:
                pass
            engine.suspected.clear()


def _address(origin: Origin) -> tuple[str, int, str]:
    return origin.host.lower(), origin.port, origin.path
