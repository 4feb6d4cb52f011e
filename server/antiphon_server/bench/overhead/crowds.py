"""Open streams: every contender under the same crowd, one after another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.bench.overhead.contenders import Contender, Kind
from antiphon_server.bench.overhead.streams import Crowd, delays, disordered, gaps, lost
from antiphon_server.quantiles import quantile

_TAIL = 2
"""Chunks of each stream after what is counted: the ends come all at once too."""


@dataclass(frozen=True, slots=True)
class CrowdPlan:
    """``streams``: open at once, one crowd for each number. ``rate``: chunks a second of each stream.
    ``settle``: seconds that are not counted, for all begin at once; ``seconds``: those that are. ``size``:
    bytes of each request."""

    streams: tuple[int, ...]
    rate: float = 20.0
    seconds: float = 5.0
    settle: float = 1.0
    size: int = 2000

    @property
    def chunks(self) -> int:
        """Of a stream."""
        return round(self.rate * (self.settle + self.seconds)) + _TAIL


@dataclass(frozen=True, slots=True)
class CrowdSample:
    """``cores``: kept busy in the seconds that count, by the serving process, the engines and the client.
    ``late``: seconds by which the engines' latest chunk left behind its time."""

    crowd: Crowd
    cores: float
    engines_cores: float
    client_cores: float
    late: float


@dataclass(frozen=True, slots=True)
class CrowdRow:
    """A contender under a crowd. ``chunks``: of all streams; ``lost``, ``disordered``: of those. ``gap``,
    ``delay``: between two chunks, and from decode to the client; median and p99. ``added``: beyond direct's
    p99. ``rate``: chunks that came a second."""

    contender: str
    kind: Kind
    streams: int
    chunks: int
    lost: int
    disordered: int
    gap: float
    gap_p99: float
    added_gap_p99: float
    delay: float
    delay_p99: float
    added_delay_p99: float
    rate: float
    cores: float
    engines_cores: float
    client_cores: float
    late: float


def crowd_rows(
    plan: CrowdPlan, streams: int, samples: Sequence[tuple[Contender, CrowdSample]]
) -> tuple[CrowdRow, ...]:
    """A row for each contender. Direct is among them."""
    base = next(sample for contender, sample in samples if contender.kind is Kind.DIRECT)
    return tuple(_row(plan, streams, contender, own, base) for contender, own in samples)


def _row(
    plan: CrowdPlan, streams: int, contender: Contender, own: CrowdSample, base: CrowdSample
) -> CrowdRow:
    own_gaps, own_delays = _counted(plan, own)
    base_gaps, base_delays = _counted(plan, base)
    gap_p99, delay_p99 = quantile(own_gaps, 0.99, 0.0), quantile(own_delays, 0.99, 0.0)
    return CrowdRow(
        contender=contender.name,
        kind=contender.kind,
        streams=streams,
        chunks=streams * plan.chunks,
        lost=lost(own.crowd.streams, plan.chunks),
        disordered=disordered(own.crowd.streams),
        gap=statistics.median(own_gaps),
        gap_p99=gap_p99,
        added_gap_p99=gap_p99 - quantile(base_gaps, 0.99, 0.0),
        delay=statistics.median(own_delays),
        delay_p99=delay_p99,
        added_delay_p99=delay_p99 - quantile(base_delays, 0.99, 0.0),
        rate=_arrived(plan, own) / plan.seconds,
        cores=own.cores,
        engines_cores=own.engines_cores,
        client_cores=own.client_cores,
        late=own.late,
    )


def _counted(plan: CrowdPlan, sample: CrowdSample) -> tuple[list[float], list[float]]:
    streams = sample.crowd.between(plan.settle, plan.settle + plan.seconds)
    return gaps(streams) or [0.0], delays(streams) or [0.0]


def _arrived(plan: CrowdPlan, sample: CrowdSample) -> int:
    """Chunks that came in the seconds that count."""
    first = sample.crowd.begun + plan.settle
    return sum(
        first <= a.received < first + plan.seconds for one in sample.crowd.streams for a in one.arrivals
    )
