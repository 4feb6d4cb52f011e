"""What the data plane has to hold, judged on a run's figures. Pure.

Of a large body what the router adds to the same legs without one is judged, of a small body the whole
latency; both are told of both. Alone: with many connections in a closed loop, on a machine that client,
engines and router share, latency says how long the queue is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from antiphon_server.bench.overhead.contenders import COLD, FIRST, PEER, SHORT
from antiphon_server.bench.overhead.crowds import CrowdRow
from antiphon_server.bench.overhead.record import Row, size_name

LARGE, SMALL = 480_000, 2_000
FASTER = 2.0
"""Times by which less has to be added to a large body than by the peer."""
SLOWER = 1.5
"""Times the peer's latency that a small body may take."""
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
    name = f"{size_name(LARGE)} adds at most 1/{FASTER:g} of what {PEER} adds"
    pairs = list(_pairs(rows, LARGE))
    passed = all(0.0 < ours.added <= peer.added / FASTER for ours, peer in pairs)
    return Verdict(name, passed if pairs else None, _told(pairs, rows))


def _small(rows: Sequence[Row]) -> Verdict:
    name = f"{size_name(SMALL)} takes at most {SLOWER:g} times as long as with {PEER}"
    pairs = list(_pairs(rows, SMALL))
    passed = all(ours.median <= peer.median * SLOWER for ours, peer in pairs)
    return Verdict(name, passed if pairs else None, _told(pairs, rows))


def _pairs(rows: Sequence[Row], size: int) -> Iterator[tuple[Row, Row]]:
    """Ours and the peer's, of whole replies and of streams."""
    alone = [row for row in rows if row.cell.size == size and row.cell.connections == 1]
    for ours in alone:
        for peer in alone:
            if ours.contender == OURS and peer.contender == PEER and ours.cell == peer.cell:
                yield ours, peer


def _told(pairs: Sequence[tuple[Row, Row]], rows: Sequence[Row]) -> str:
    if not pairs:
        return "not measured: it takes the peer, this size and one connection"
    return "; ".join(_both(ours, peer, rows) for ours, peer in pairs)


def _both(ours: Row, peer: Row, rows: Sequence[Row]) -> str:
    manner = "streaming" if ours.cell.stream else "whole"
    times = ours.median / peer.median
    text = f"{manner} {_latency(ours)} against {_latency(peer)}: {times:.2f} times the latency"
    if peer.added > 0.0:
        text += f", {ours.added / peer.added:.2f} times what is added"
    shipped = (row for row in rows if row.contender == COLD.name and row.cell == ours.cell)
    return text + "".join(f" (with token ids {_latency(row)})" for row in shipped)


def _latency(row: Row) -> str:
    return f"{row.median * 1000:.2f} ms, of which added {row.added * 1000:.2f}"


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
