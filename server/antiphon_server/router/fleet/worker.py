"""An engine as the router knows it, and the workers that it offers: itself, or its data-parallel ranks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from antiphon_server.protocol import Info
from antiphon_server.router.fleet.breaker import Breaker
from antiphon_server.router.fleet.build import Build, build_of
from antiphon_server.router.plan.plan import EngineState
from antiphon_server.router.upstream.upstream import Origin

Role = Literal["prefill", "decode"]
RANK_HEADER = "X-data-parallel-rank"


@dataclass(frozen=True, slots=True)
class Pressure:
    """What a decode engine said of itself. ``usage``: share of its KV in use, kept KV included. ``waiting``:
    requests that wait for room. ``at``: when, on the router's clock."""

    usage: float
    waiting: int
    at: float


class Engine:
    """One address with its health and life. ``info``: None while unknown, and for good on a stock engine;
    ``build``: the part of it that transfers depend on; ``epoch``: which life of the engine this is;
    ``reuse``, ``capacity``, ``block_size``, ``text_only``, ``names_legs``: what it says of itself, kept here
    as each turn asks for it. ``draining``: gets no new turn. ``probed``: was asked once. ``missed``: probes
    in a row without an answer.
    """

    def __init__(self, url: str, role: Role, breaker: Breaker) -> None:
        self.url = url
        self.role: Role = role
        self.origin = Origin.parse(url)
        self.breaker = breaker
        self.healthy = False
        self.stock = False
        self.draining = False
        self.build: Build | None = None
        self.epoch: str | None = None
        self.reuse = False
        self.capacity = 0
        self.block_size = 1
        self.text_only = False
        self.names_legs = False
        self.missed = 0
        self.suspected = asyncio.Event()
        self.probed = asyncio.Event()
        self.workers: tuple[Worker, ...] = ()
        self._info: Info | None = None

    @property
    def info(self) -> Info | None:
        return self._info

    @info.setter
    def info(self, info: Info | None) -> None:
        self._info = info
        self.epoch = info.epoch if info is not None else None
        self.reuse = info is not None and info.reuse
        self.capacity = info.capacity if info is not None else 0
        self.block_size = max(1, info.block_size) if info is not None else 1
        self.text_only = info is not None and info.text_only
        self.names_legs = info is not None and info.names_legs
        self.build = build_of(info) if info is not None else None

    @property
    def ranks(self) -> int:
        """Data-parallel ranks that a leg can be sent to one by one; 1 without data parallelism."""
        return max(1, self.info.data_parallel) if self.info is not None else 1


class Worker:
    """What takes legs: an engine, or one data-parallel ``rank`` of it, whose KV no other rank has.

    ``name``: the URL, with ``#rank`` where there are several; frontiers and places use it. ``headers``: what
    sends a leg to this rank. ``in_flight``: legs it has now. ``backlog``: what they weigh beyond one leg
    each, in legs, for whoever measures it. ``pressure``: last reading, None where there is none. Health, info
    and breaker are the engine's.
    """

    def __init__(
        self, engine: Engine, rank: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.engine = engine
        self.rank = rank
        self.name = engine.url if rank is None else f"{engine.url}#{rank}"
        self.headers: tuple[tuple[str, str], ...] = () if rank is None else ((RANK_HEADER, str(rank)),)
        self.in_flight = 0
        self.backlog = 0.0
        self.pressure: Pressure | None = None
        self._clock = clock

    def __repr__(self) -> str:
        return f"<{self.role} {self.name}>"

    @property
    def url(self) -> str:
        return self.engine.url

    @property
    def role(self) -> Role:
        return self.engine.role

    @property
    def origin(self) -> Origin:
        return self.engine.origin

    @property
    def healthy(self) -> bool:
        """Answers probes."""
        return self.engine.healthy

    @property
    def stock(self) -> bool:
        """Has no plug-in of ours."""
        return self.engine.stock

    @property
    def draining(self) -> bool:
        """Gets no new turn, and finishes what it has."""
        return self.engine.draining

    @property
    def info(self) -> Info | None:
        return self.engine.info

    @property
    def reuse(self) -> bool:
        """May send or take handles for reuse."""
        return self.engine.reuse

    @property
    def epoch(self) -> str | None:
        """Which life of the engine this is."""
        return self.engine.epoch

    @property
    def load(self) -> float:
        """What it has to do now, in legs."""
        return self.in_flight + self.backlog

    @property
    def serving(self) -> bool:
        """Healthy and not draining; its breaker may be open."""
        return self.engine.healthy and not self.engine.draining

    @property
    def available(self) -> bool:
        """May take a new turn: healthy, not draining, and its breaker lets it."""
        return self.serving and self.engine.breaker.allows(self._clock())

    @property
    def state(self) -> EngineState:
        """What a plan needs to know."""
        caches = self.info is not None and self.info.prefix_caching
        return EngineState(self.healthy, self.epoch, self.stock, self.reuse, caches)

    def failed(self, now: float) -> None:
        """A leg failed by the engine's fault: see :func:`.breaker.blames_engine`."""
        self.engine.breaker.failed(now)

    def succeeded(self, now: float) -> None:
        """A leg was served."""
        self.engine.breaker.succeeded(now)
