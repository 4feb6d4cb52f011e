"""Open streams: every contender under the same crowd, one after another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.bench.overhead.contenders import Contender, Kind
from antiphon_server.bench.overhead.record import percentile
from antiphon_server.bench.overhead.streams import Crowd, delays, disordered, gaps, lost


@dataclass(frozen=True, slots=True)
class CrowdPlan:
    """``streams``: open at once, one crowd for each number. ``rate``: chunks a second of each stream.
    ``seconds``: each lasts."""

    streams: tuple[int, ...]
    rate: float = 20.0
    seconds: float = 5.0
    size: int = 2000

    @property
    def chunks(self) -> int:
        """Of a stream."""
        return max(2, round(self.rate * self.seconds))


@dataclass(frozen=True, slots=True)
class CrowdSample:
    """``cores``: kept busy while chunks came, by the serving process, the engines and the client. ``late``:
    seconds by which the engines' latest chunk left behind its time."""

    crowd: Crowd
    cores: float
    engines_cores: float
    client_cores: float
    late: float


@dataclass(frozen=True, slots=True)
class CrowdRow:
    """A contender under a crowd. ``gap``, ``delay``: between two chunks, and from decode to the client;
    median and p99. ``added``: beyond direct's p99. ``rate``: chunks that came a second."""

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
    """A row for each contender; several samples of one are put together. Direct is among them."""
    found: dict[Contender, list[CrowdSample]] = {}
    for contender, sample in samples:
        found.setdefault(contender, []).append(sample)
    base = next(own for contender, own in found.items() if contender.kind is Kind.DIRECT)
    return tuple(_row(plan, streams, contender, own, base) for contender, own in found.items())


def _row(
    plan: CrowdPlan, streams: int, contender: Contender, own: list[CrowdSample], base: list[CrowdSample]
) -> CrowdRow:
    all_gaps, all_delays = _all(own)
    base_gaps, base_delays = _all(base)
    received = [stream for sample in own for stream in sample.crowd.streams]
    gap_p99, delay_p99 = percentile(all_gaps, 0.99), percentile(all_delays, 0.99)
    return CrowdRow(
        contender=contender.name,
        kind=contender.kind,
        streams=streams,
        chunks=streams * plan.chunks * len(own),
        lost=lost(received, plan.chunks),
        disordered=disordered(received),
        gap=statistics.median(all_gaps),
        gap_p99=gap_p99,
        added_gap_p99=gap_p99 - percentile(base_gaps, 0.99),
        delay=statistics.median(all_delays),
        delay_p99=delay_p99,
        added_delay_p99=delay_p99 - percentile(base_delays, 0.99),
        rate=len(all_delays) / sum(sample.crowd.seconds for sample in own),
        cores=statistics.mean(sample.cores for sample in own),
        engines_cores=statistics.mean(sample.engines_cores for sample in own),
        client_cores=statistics.mean(sample.client_cores for sample in own),
        late=max(sample.late for sample in own),
    )


def _all(samples: Sequence[CrowdSample]) -> tuple[list[float], list[float]]:
    streams = [stream for sample in samples for stream in sample.crowd.streams]
    return gaps(streams) or [0.0], delays(streams) or [0.0]
