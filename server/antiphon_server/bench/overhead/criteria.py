"""What the data plane has to hold, judged on a run's figures. Pure.

Bodies are judged by the latency that a router adds to the same legs without one, alone: with many connections
in a closed loop, on a machine that client, engines and router share, latency says how long the queue is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from antiphon_server.bench.overhead.contenders import FIRST, PEER, SHORT
from antiphon_server.bench.overhead.crowds import CrowdRow
from antiphon_server.bench.overhead.record import Row, size_name

LARGE, SMALL = 480_000, 2_000
FASTER = 2.0
"""Times by which a large body has to be faster than with the peer."""
SLOWER = 1.5
"""Times the peer's latency that a small body may take."""
_LEAST_S = 1e-6
CROWD = 1000
ADDED_S = 0.020
"""Seconds that a router may add to the 99th percentile between two chunks of so many streams."""
OURS = SHORT.name
"""Judged beside the peer, which does not ask prefill for the prompt's ids: the same legs, the same bytes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``passed``: None where the run did not measure it. ``text``: the figures, for people."""

    name: str
    passed: bool | None
    text: str


def verdicts(rows: Sequence[Row], crowds: Sequence[CrowdRow]) -> tuple[Verdict, ...]:
    """All criteria."""
    return (_large(rows), _small(rows), *_streams(crowds))


def holds(found: Iterable[Verdict]) -> bool:
    """True when all were measured and all pass."""
    return all(verdict.passed is True for verdict in found)


def _large(rows: Sequence[Row]) -> Verdict:
    name = f"{size_name(LARGE)} at least {FASTER:g}x faster than {PEER}"
    pairs = list(_pairs(rows, LARGE))
    worst = min((_ratio(peer, ours) for ours, peer in pairs), default=0.0)
    return Verdict(name, worst >= FASTER if pairs else None, _told(pairs, f"{worst:.2f}x faster"))


def _small(rows: Sequence[Row]) -> Verdict:
    name = f"{size_name(SMALL)} at most {SLOWER:g} times the latency of {PEER}"
    pairs = list(_pairs(rows, SMALL))
    worst = max((_ratio(ours, peer) for ours, peer in pairs), default=0.0)
    return Verdict(name, worst <= SLOWER if pairs else None, _told(pairs, f"{worst:.2f} times"))


def _pairs(rows: Sequence[Row], size: int) -> Iterator[tuple[Row, Row]]:
    """Ours and the peer's, of whole replies and of streams."""
    alone = [row for row in rows if row.cell.size == size and row.cell.connections == 1]
    for ours in alone:
        for peer in alone:
            if ours.contender == OURS and peer.contender == PEER and ours.cell == peer.cell:
                yield ours, peer


def _ratio(one: Row, other: Row) -> float:
    """Of what they add. Noise may leave nothing of it."""
    return max(one.added, _LEAST_S) / max(other.added, _LEAST_S)


def _added(row: Row) -> str:
    return f"{row.added * 1000:.2f} ms (of {row.median * 1000:.2f})"


def _told(pairs: Sequence[tuple[Row, Row]], worst: str) -> str:
    if not pairs:
        return "not measured: it takes the peer, this size and one connection"
    each = ", ".join(
        f"{'streaming' if ours.cell.stream else 'whole'} {_added(ours)} against {_added(peer)}"
        for ours, peer in pairs
    )
    return f"{worst} at worst; added, alone: {each}"


def _streams(crowds: Sequence[CrowdRow]) -> Iterator[Verdict]:
    limit = f"{ADDED_S * 1000:g} ms"
    row = next((row for row in crowds if row.contender == FIRST.name and row.streams >= CROWD), None)
    added = f"{CROWD} streams: p99 between two chunks grows by less than {limit}"
    whole = f"{CROWD} streams: no chunk lost, none out of order"
    if row is None:
        missing = f"not measured: it takes a crowd of {CROWD}"
        yield Verdict(added, None, missing)
        yield Verdict(whole, None, missing)
        return
    yield Verdict(added, row.added_gap_p99 < ADDED_S, f"{row.added_gap_p99 * 1000:.1f} ms added")
    yield Verdict(
        whole,
        row.lost == 0 and row.disordered == 0,
        f"{row.lost} lost and {row.disordered} out of order of {row.chunks}",
    )
