"""What a run found, as kept on disk. Times in seconds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.bench.overhead.contenders import Contender, Kind
from antiphon_server.bench.overhead.load import Burst
from antiphon_server.quantiles import quantile


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of load. ``size``: bytes of each body."""

    size: int
    stream: bool
    connections: int

    @property
    def name(self) -> str:
        how = "streaming" if self.stream else "whole"
        many = "alone" if self.connections == 1 else f"{self.connections} connections"
        return f"{size_name(self.size)}, {how}, {many}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One burst. CPU in seconds: of the process that served it, of the engines, of the client."""

    burst: Burst
    cpu: float
    engines_cpu: float
    client_cpu: float


@dataclass(frozen=True, slots=True)
class Row:
    """A contender in a cell. ``median``, ``p99``: of the latency, to a stream's first byte or a whole reply's
    end. ``added``, ``added_p99``: beyond the same legs without a router. ``cpu``: of the serving process, a
    request; ``per_core``: requests for each second of it. ``engines_cpu``, ``client_cpu``: a request."""

    contender: str
    kind: Kind
    cell: Cell
    count: int
    median: float
    p99: float
    added: float
    added_p99: float
    rate: float
    cpu: float
    per_core: float | None
    engines_cpu: float
    client_cpu: float
    paths: dict[str, int]


def rows_of(cell: Cell, samples: Sequence[tuple[Contender, Sample]]) -> tuple[Row, ...]:
    """A row for each contender, in the order in which they came first. What they are compared with is among
    them."""
    contenders = dict.fromkeys(contender for contender, _ in samples)
    latencies = {
        contender: [value for own, sample in samples if own is contender for value in latency(cell, sample)]
        for contender in contenders
    }
    bases = {contender.name: own for contender, own in latencies.items() if contender.kind is Kind.DIRECT}
    return tuple(
        _row(
            cell,
            contender,
            latencies[contender],
            bases[contender.base],
            [sample for own, sample in samples if own is contender],
        )
        for contender in contenders
    )


def latency(cell: Cell, sample: Sample) -> tuple[float, ...]:
    """Of each request: what its client waits for."""
    return sample.burst.first if cell.stream else sample.burst.whole


def _row(cell: Cell, contender: Contender, own: list[float], base: list[float], samples: list[Sample]) -> Row:
    count = len(own)
    cpu = sum(sample.cpu for sample in samples)
    paths: dict[str, int] = {}
    for sample in samples:
        for path, times in sample.burst.paths.items():
            paths[path] = paths.get(path, 0) + times
    return Row(
        contender=contender.name,
        kind=contender.kind,
        cell=cell,
        count=count,
        median=statistics.median(own),
        p99=quantile(own, 0.99, 0.0),
        added=statistics.median(own) - statistics.median(base),
        added_p99=quantile(own, 0.99, 0.0) - quantile(base, 0.99, 0.0),
        rate=count / sum(sample.burst.seconds for sample in samples),
        cpu=cpu / count,
        per_core=count / cpu if cpu else None,
        engines_cpu=sum(sample.engines_cpu for sample in samples) / count,
        client_cpu=sum(sample.client_cpu for sample in samples) / count,
        paths=paths,
    )


def size_name(size: int) -> str:
    """For people: 480 KB."""
    return f"{size / 1000:g} KB"
