"""A run: every contender in every cell, turn by turn, so that a machine's drift meets all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from antiphon_server.bench.overhead.contenders import Contender, Ports
from antiphon_server.bench.overhead.instant import COUNTS_PATH, Counts
from antiphon_server.bench.overhead.load import Burst, Load
from antiphon_server.bench.overhead.processes import Running
from antiphon_server.bench.overhead.record import Cell, Row, Sample, rows_of
from antiphon_server.bench.overhead.request import Body

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """``rounds``: bursts of each contender in each cell. ``seconds``: of a burst."""

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
    """All contenders, up and running."""

    def __init__(self, contenders: Sequence[Contender], ports: Ports, processes: Running) -> None:
        self._contenders = contenders
        self._ports = ports
        self._processes = processes
        self._loads = {one: Load(ports.url(one.process), one.naming) for one in contenders}

    async def cell(self, cell: Cell, plan: Plan, after: Callable[[], None]) -> tuple[Row, ...]:
        """Measure it. ``after``: called after each burst."""
        body = Body(cell.size, cell.stream)
        samples: list[tuple[Contender, Sample]] = []
        for one in self._contenders:
            # Opens connections, and gives conversations something to go on from.
            await self._loads[one].burst(body, cell.connections, 0.0, least=3)
        for number in range(plan.rounds):
            # Nobody is always the first, or always behind the same one.
            shift = number % len(self._contenders)
            for one in (*self._contenders[shift:], *self._contenders[:shift]):
                samples.append((one, await self._sample(one, body, cell, plan.seconds)))
                after()
        return rows_of(cell, sorted(samples, key=lambda pair: self._contenders.index(pair[0])))

    async def _sample(self, one: Contender, body: Body, cell: Cell, seconds: float) -> Sample:
        before, legs = self._cpu(one), self._counts()
        burst = await self._loads[one].burst(body, cell.connections, seconds)
        after, done = self._cpu(one), self._counts()
        self._check(one, burst, (done.prefill - legs.prefill, done.decode - legs.decode))
        cpu, engines_cpu, client_cpu = (b - a for a, b in zip(before, after, strict=True))
        return Sample(burst, cpu, engines_cpu, client_cpu)

    def _cpu(self, one: Contender) -> tuple[float, float, float]:
        served = self._processes.cpu(one.process) if one.process is not None else 0.0
        return served, self._processes.cpu("engines"), time.process_time()

    def _counts(self) -> Counts:
        url = self._ports.url(None) + COUNTS_PATH
        return msgspec.json.decode(httpx.get(url, trust_env=False).content, type=Counts)

    @staticmethod
    def _check(one: Contender, burst: Burst, legs: tuple[int, int]) -> None:
        expected = (one.legs[0] * burst.count, one.legs[1] * burst.count)
        if legs != expected:
            raise LegsError(
                f"{one.name}: {burst.count} requests made {legs[0]} prefill and {legs[1]} decode legs, not "
                f"{expected[0]} and {expected[1]}: something else uses the engines, or legs were repeated"
            )
        if set(burst.paths) != {one.path}:
            raise LegsError(f"{one.name}: paths were {burst.paths}, not {one.path} alone")

    def close(self) -> None:
        """Drop all connections."""
        for load in self._loads.values():
            load.drop()


def measure(
    plan: Plan, contenders: Sequence[Contender], ports: Ports, processes: Running, tell: Told
) -> tuple[Row, ...]:
    """Every cell. ``tell``: hears what is being measured."""
    import uvloop

    async def run() -> tuple[Row, ...]:
        field = Field(contenders, ports, processes)
        rows: list[Row] = []
        try:
            for cell in plan.cells():
                tell(cell.name)
                rows += await field.cell(cell, plan, processes.check)
        finally:
            field.close()
        return tuple(rows)

    return uvloop.run(run())
