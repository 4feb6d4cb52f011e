"""A run: every contender in every cell, turn by turn, so that a machine's drift meets all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx
import msgspec
import uvloop

from antiphon_server.bench.overhead.contenders import BOTH, LIBRARIES, Contender, Ports
from antiphon_server.bench.overhead.crowds import CrowdPlan, CrowdRow, CrowdSample, crowd_rows
from antiphon_server.bench.overhead.instant import COUNTS_PATH, ORDERS_PATH, Counts, Orders
from antiphon_server.bench.overhead.load import Burst, Load, Naming
from antiphon_server.bench.overhead.processes import Running
from antiphon_server.bench.overhead.record import Cell, Row, Sample, rows_of
from antiphon_server.bench.overhead.request import Body
from antiphon_server.bench.overhead.streams import crowd, fates

Told = Callable[[str], None]
_PATIENCE_S = 30.0
_MANY = 16
"""Connections that warm up with one request each."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``sizes``: of bodies, in bytes. ``rounds``: bursts of each contender in each cell. ``seconds``: of a
    burst."""

    sizes: tuple[int, ...]
    connections: tuple[int, ...]
    rounds: int
    seconds: float
    streaming: tuple[bool, ...] = (False, True)

    def cells(self) -> Iterator[Cell]:
        """All kinds of load, the lightest first."""
        for size in self.sizes:
            for stream in self.streaming:
                for connections in self.connections:
                    yield Cell(size, stream, connections)


class LegsError(RuntimeError):
    """A contender did not do what it is measured for."""


class Field:
    """All contenders, up and running. ``tell``: hears what is being measured."""

    def __init__(self, contenders: Sequence[Contender], ports: Ports, processes: Running, tell: Told) -> None:
        self._contenders = contenders
        self._ports = ports
        self._processes = processes
        self._tell = tell
        self._http = httpx.Client(base_url=ports.url(None), timeout=10.0, trust_env=False)

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def cells(self, plan: Plan) -> tuple[Row, ...]:
        """Latency and capacity, in every cell.

        Raises:
            ReplyError, LegsError, StartError
        """

        async def run() -> tuple[Row, ...]:
            loads = {one: self._load(one) for one in self._contenders}
            rows: list[Row] = []
            try:
                for cell in plan.cells():
                    self._tell(cell.name)
                    rows += await self._cell(cell, plan, loads)
            finally:
                for load in loads.values():
                    load.drop()
            return tuple(rows)

        return uvloop.run(run())

    def _load(self, one: Contender) -> Load:
        before = self._ports.prefill_url if one is BOTH else None
        return Load(self._ports.url(one.process), one.naming, before=before)

    async def _cell(self, cell: Cell, plan: Plan, loads: dict[Contender, Load]) -> tuple[Row, ...]:
        body = Body(cell.size, cell.stream)
        samples: list[tuple[Contender, Sample]] = []
        for one in self._contenders:
            # Opens connections, and gives conversations something to go on from.
            await loads[one].burst(body, cell.connections, 0.0, least=1 if cell.connections > _MANY else 3)
        for number in range(plan.rounds):
            for one in _turned(self._contenders, number):
                samples.append((one, await self._sample(one, loads[one], cell, body, plan.seconds)))
                self._processes.check()
        return rows_of(cell, sorted(samples, key=lambda pair: self._contenders.index(pair[0])))

    async def _sample(self, one: Contender, load: Load, cell: Cell, body: Body, seconds: float) -> Sample:
        self._order(Orders(token_ids=one.token_ids))
        before, legs = self._cpu(one), self._counts()
        burst = await load.burst(body, cell.connections, seconds)
        after, done = self._cpu(one), self._counts()
        check(one, burst, (done.prefill - legs.prefill, done.decode - legs.decode))
        cpu, engines_cpu, client_cpu = (b - a for a, b in zip(before, after, strict=True))
        return Sample(burst, cpu, engines_cpu, client_cpu)

    def crowds(self, plan: CrowdPlan) -> tuple[CrowdRow, ...]:
        """Open streams. Of contenders that serve streams alike, the one whose conversations are new.

        Raises:
            ReplyError, StartError
        """
        alike = {Naming.SAME}
        chosen: dict[str | None, Contender] = {}
        for one in self._contenders:
            # Libraries are told apart by requests; streams would take long for little.
            if one.naming not in alike and one.token_ids and one not in (BOTH, *LIBRARIES):
                chosen[one.process] = one
        rows: list[CrowdRow] = []
        for streams in plan.streams:
            self._tell(f"{streams} streams of {plan.rate:g} chunks/s")
            samples = []
            for one in chosen.values():
                samples.append((one, self._crowd(one, streams, plan)))
                self._processes.check()
            rows += crowd_rows(plan, streams, samples)
        return tuple(rows)

    def _crowd(self, one: Contender, streams: int, plan: CrowdPlan) -> CrowdSample:
        self._order(Orders(interval=1 / plan.rate, hold=streams, token_ids=one.token_ids))
        looks: list[tuple[float, tuple[float, float, float]]] = []

        def look() -> None:
            looks.append((time.monotonic(), self._cpu(one)))

        def began() -> None:
            loop = asyncio.get_running_loop()
            loop.call_later(plan.settle, look)
            loop.call_later(plan.settle + plan.seconds, look)

        url, limit = self._ports.url(one.process), plan.settle + plan.seconds + _PATIENCE_S
        seen = uvloop.run(crowd(url, streams, plan.chunks, size=plan.size, limit=limit, began=began))
        look()  # where the streams ended too soon for the second
        (since, before), (until, after) = looks[:2]
        cores, engines, client = (
            (b - a) / max(until - since, 1e-9) for a, b in zip(before, after, strict=True)
        )
        counts = self._counts()
        self._order(Orders())
        for fate in fates(seen.streams, plan.chunks):
            self._tell(f"{one.name}: {fate}")
        return CrowdSample(seen, cores, engines, client, counts.late)

    def _cpu(self, one: Contender) -> tuple[float, float, float]:
        served = self._processes.cpu(one.process) if one.process is not None else 0.0
        return served, self._processes.cpu("engines"), time.process_time()

    def _counts(self) -> Counts:
        reply = self._http.get(COUNTS_PATH).raise_for_status()
        return msgspec.json.decode(reply.content, type=Counts)

    def _order(self, orders: Orders) -> None:
        self._http.put(ORDERS_PATH, content=msgspec.json.encode(orders)).raise_for_status()


def check(one: Contender, burst: Burst, legs: tuple[int, int]) -> None:
    """See that a burst was what it is taken for. ``legs``: those that came, on prefill and on decode.

    Raises:
        LegsError
    """
    expected = (one.legs[0] * burst.count, one.legs[1] * burst.count)
    if set(burst.paths) != {one.path}:
        raise LegsError(f"{one.name}: paths were {burst.paths}, not {one.path} alone")
    if legs != expected:
        raise LegsError(
            f"{one.name}: {burst.count} requests made {legs[0]} prefill and {legs[1]} decode legs, not "
            f"{expected[0]} and {expected[1]}: something else uses the engines, or legs were repeated"
        )


def _turned(contenders: Sequence[Contender], number: int) -> Sequence[Contender]:
    """Nobody is always the first, or always behind the same one."""
    shift = number % max(1, len(contenders))
    return (*contenders[shift:], *contenders[:shift])
