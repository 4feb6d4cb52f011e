"""A whole fleet in one process and on counted time: simulated engines, and routers over them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, cast
from unittest import mock
from uuid import UUID

import uvicorn
from starlette.applications import Starlette
from uvicorn.server import ServerState

from antiphon_server.router.app import create_app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.state import State
from antiphon_server.router.store.frontier import Frontier, FrontierStore
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine
from antiphon_server.simulator import app as engine_app
from antiphon_server.simulator.serve import _Protocol
from antiphon_server.simulator.transfer import TransferError
from doubles.client import Call
from doubles.ledger import Ledger, Leg
from doubles.memory_network import MemoryNetwork
from doubles.virtual_loop import VirtualLoop

_T = TypeVar("_T")
PORT = 8000


@cache
def _defaults() -> RouterSettings:
    return RouterSettings()


class Cluster(SimulatedCluster):
    """``failing``: transfers that are going to fail. ``unread``: prefill's leases that decode failed to read:
    it computes itself then, and tells nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = 0
        self.unread: set[str] = set()

    def read(self, handle: Any, counts: Any) -> Any:
        if self.failing:
            self.failing -= 1
            if handle.get("do_remote_prefill"):
                self.unread.add(handle["remote_request_id"])
            raise TransferError("injected")
        return super().read(handle, counts)


class Errors(logging.Handler):
    """Keeps what is logged as an error: nothing of it may ever happen."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


@dataclass
class Router:
    """A running router."""

    app: Starlette
    state: State
    life: AbstractAsyncContextManager[Any]
    calls: list[Call] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Nothing is in flight, nor done in the background on a turn's behalf."""
        state = self.state
        return (
            state.admission.in_flight == 0
            and state.admission.waiting == 0
            and state.drain.in_flight == 0
            and not state.conversations._visits
            and not state._background
            and not state.conversations._bookkeeping
            and not state.leases._releases._senders
            and all(worker.in_flight == 0 for worker in state.workers)
        )

    def leftovers(self) -> list[str]:
        """Counters that should be back where they began, and are not."""
        state = self.state
        found: dict[str, float] = {f"in_flight of {w.name}": w.in_flight for w in state.workers}
        found |= {f"ahead of {worker.name}": state.rates.ahead(worker.name) for worker in state.workers}
        found |= {f"busy on {w.name}": state.rooms.of(w).busy for w in state.workers.decode}
        found |= {f"leaving on {w.name}": state.rooms.of(w).leaving for w in state.workers.decode}
        found["turns admitted"] = state.admission.in_flight
        found["turns that wait"] = state.admission.waiting
        found["tenants with turns"] = len(state.admission._running)
        found["requests"] = state.drain.in_flight
        found["visits"] = len(state.conversations._visits)
        found["bookkeeping"] = len(state.conversations._bookkeeping)
        found["background"] = len(state._background)
        found["releases"] = len(state.leases._releases._senders)
        gauges = ("antiphon_turns_in_flight", "antiphon_queue_depth")
        found |= {name: state.metrics.registry.get_sample_value(name) or 0 for name in gauges}
        return [f"{name}: {value}" for name, value in found.items() if value]


class Fleet:
    """``prefill``, ``decode``: settings of the engines. ``portions``: bytes arrive in pieces of any size."""

    def __init__(
        self,
        prefill: Sequence[Settings],
        decode: Sequence[Settings],
        *,
        portions: bool = False,
        seed: int = 0,
    ) -> None:
        self.network = MemoryNetwork(random.Random(seed) if portions else None)
        self.loop = VirtualLoop(self.network)
        self.cluster = Cluster()
        self.violations: list[str] = []
        self.ledger = Ledger(self._look)
        self.lives: dict[str, tuple[SimulatedEngine, str]] = {}
        self.informed: dict[str, float] = {}
        self.errors = Errors()
        self.routers: list[Router] = []
        self._ends = ExitStack()
        self._seed = seed
        source = random.Random(seed)

        def uuid() -> UUID:
            return UUID(int=source.getrandbits(128), version=4)

        for module in ("engine", "app"):
            self._ends.enter_context(mock.patch(f"antiphon_server.simulator.{module}.uuid4", uuid))
        for name in ("antiphon_server", "asyncio"):
            logger = logging.getLogger(name)
            self._ends.callback(logger.setLevel, logger.level)
            self._ends.callback(setattr, logger, "propagate", logger.propagate)
            self._ends.callback(logger.removeHandler, self.errors)
            logger.setLevel(logging.INFO)  # a line that cannot be made is a crash, too
            logger.propagate = False
            logger.addHandler(self.errors)
        self.loop.set_exception_handler(self._unhandled)
        self.prefill = [self._engine(own) for own in prefill]
        self.decode = [self._engine(own) for own in decode]
        self.urls = {id(e): f"http://p{i}:{PORT}" for i, e in enumerate(self.prefill)}
        self.urls |= {id(e): f"http://d{i}:{PORT}" for i, e in enumerate(self.decode)}
        self.up: set[int] = set()
        for engine in self.engines:
            self.boot(engine)

    @property
    def engines(self) -> list[SimulatedEngine]:
        """Every engine, of both roles."""
        return [*self.prefill, *self.decode]

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Let the world go on until ``work`` is done."""
        return self.loop.run_until_complete(work)

    def pass_time(self, seconds: float) -> None:
        """Let so many seconds pass; 0 lets each task that can do one step do it."""
        self.run(asyncio.sleep(seconds))

    def boot(self, engine: SimulatedEngine) -> None:
        """Start an engine's process, or start it again."""
        engine.resume()
        self._note_life(engine)
        app = self.ledger.watched(engine_app(engine), engine)
        config = uvicorn.Config(
            app, ws="none", lifespan="off", log_config=None, log_level="critical", access_log=False
        )
        config.load()
        state = ServerState()
        address = (self.urls[id(engine)].removeprefix("http://").partition(":")[0], PORT)
        self.network.listen(address, lambda: _Protocol(config, state, {}, self.loop))
        self.up.add(id(engine))

    def kill(self, engine: SimulatedEngine) -> None:
        """End an engine's process."""
        engine.halt()
        engine.faults.clear()
        self.network.close((self.urls[id(engine)].removeprefix("http://").partition(":")[0], PORT))
        self.up.discard(id(engine))

    def restart(self, engine: SimulatedEngine) -> None:
        """A new life at once: all KV is gone."""
        engine.restart()
        self._note_life(engine)

    def start_router(self, store: FrontierStore | None, **settings: Any) -> Router:
        """A router over all engines."""
        named = {"prefill": [self.urls[id(e)] for e in self.prefill]}
        named["decode"] = [self.urls[id(e)] for e in self.decode]
        own = _defaults().model_copy(update=named | settings)  # to validate takes longer than many turns
        app = create_app(own, store=store, clock=self.loop.time)
        state = cast("State", app.state.router)
        state.placement._random.seed(self._seed)
        self._note_what_is_known(state)
        life = app.router.lifespan_context(app)
        self.run(life.__aenter__())
        router = Router(app, state, life)
        self.routers.append(router)
        return router

    def stop_router(self, router: Router) -> None:
        """As its process does when it is told to: no new turns, those in flight to their end."""
        router.state.begin_drain()
        self.run(asyncio.wait_for(router.state.drain.idle(), 1000.0))
        self.run(router.life.__aexit__(None, None, None))
        self.routers.remove(router)

    def call(
        self, router: Router, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Call:
        """Begin a request."""

        async def begin() -> Call:
            return Call(router.app, method, path, body, headers)

        return self.run(begin())

    def held(self) -> list[Frontier]:
        """What conversations rest on, of all routers."""
        kept = {f.lease: f for router in self.routers for f in self.run(router.state.store.held())}
        return list(kept.values())

    def unaccounted(self) -> list[str]:
        """Leases on engines that are no conversation's and that somebody could have released."""
        kept = {frontier.lease for frontier in self.held()} | self.cluster.unread
        return [
            f"{self.urls[id(engine)]} holds {lease}: {self.ledger.story(lease)}"
            for engine in self.engines
            if engine.settings.antiphon and id(engine) in self.up
            for lease in engine.pinned
            if lease not in kept and not self.ledger.excused(lease)
        ]

    def close(self) -> None:
        """End everything. What still runs then has leaked."""
        for router in list(self.routers):
            self.stop_router(router)
        for engine in self.engines:
            if id(engine) in self.up:
                self.kill(engine)
        for _ in range(20):
            self.pass_time(0)
        self.violations += [f"leaked: {task!r}" for task in asyncio.all_tasks(self.loop)]

    def dispose(self) -> None:
        """Let go of the loop, whatever has happened."""
        while tasks := asyncio.all_tasks(self.loop):  # some leave work to others when they are cancelled
            for task in tasks:
                task.cancel()
            self.run(_gathered(tasks))
        self.pass_time(0)
        self.loop.close()
        self._ends.close()

    def _engine(self, settings: Settings) -> SimulatedEngine:
        return SimulatedEngine(settings, clock=self.loop.time, cluster=self.cluster)

    def _note_life(self, engine: SimulatedEngine) -> None:
        self.lives[engine.engine_id] = (engine, engine.epoch)

    def _note_what_is_known(self, state: State) -> None:
        """Note when a router hears of an engine's new life."""
        told = state.workers._restarted

        async def tell(worker: Worker) -> None:
            self.informed[worker.name] = self.loop.time()
            if told is not None:
                await told(worker)

        state.workers._restarted = tell

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.violations.append(f"unhandled: {context.get('message')} {context.get('exception')!r}")

    def _look(self, leg: Leg) -> None:
        """What holds for every leg, whatever the answer is."""
        if leg.lease is None or b'"remote_block_ids"' not in leg.raw:
            return
        if len(self.ledger.spent(leg.lease)) > 1:
            self.violations.append(f"handle {leg.lease} was sent twice")
        for origin in self.ledger.origin(leg.lease):
            if origin.owner != leg.owner:
                self.violations.append(f"KV of {origin.owner} was offered to {leg.owner}")
        engine, epoch = self.lives[leg.holder] if leg.holder is not None else (None, None)
        if engine is None or leg.engine.settings.role != "prefill" or len(self.routers) != 1:
            return  # a handle for decode was fresh when its leg was begun
        name = self.urls[id(engine)]
        worker = self.routers[0].state.workers.find(name)
        known = worker is not None and worker.epoch != epoch and self.informed[name] < self.loop.time()
        if known:
            self.violations.append(f"handle {leg.lease} is of a life of {name} that is known to be over")


async def _gathered(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
