"""The figures in print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from antiphon_server.bench.grid import Grid
from antiphon_server.bench.overhead.contenders import Kind
from antiphon_server.bench.overhead.criteria import Verdict
from antiphon_server.bench.overhead.crowds import CrowdRow
from antiphon_server.bench.overhead.record import Row
from antiphon_server.bench.overhead.report import Memory

COLUMNS = (
    "ms",
    "requests",
    "median",
    "p99",
    "added",
    "added p99",
    "CPU each",
    "engines",
    "client",
    "req/s",
    "per core",
)
"""``CPU each``: of the serving process, a request; ``engines``, ``client``: of those. ``per core``: requests
for each second of the serving process's CPU."""


def cells(row: Row) -> tuple[str, ...]:
    """In the order of :data:`COLUMNS`."""
    direct = row.kind is Kind.DIRECT
    return (
        row.contender,
        f"{row.count}",
        _ms(row.median),
        _ms(row.p99),
        "" if direct else _ms(row.added),
        "" if direct else _ms(row.added_p99),
        "" if direct else _ms(row.cpu),
        _ms(row.engines_cpu),
        _ms(row.client_cpu),
        f"{row.rate:.0f}",
        f"{row.per_core:.0f}" if row.per_core else "",
    )


def tables(rows: Iterable[Row]) -> RenderableType:
    """One for each cell."""
    parts: list[RenderableType] = []
    for name, own in _by_cell(rows):
        grid = Grid(COLUMNS, gap=1)
        for row in own:
            grid.add(*cells(row))
        parts += [Text(name, style="bold"), grid, Text()]
    return Group(*parts)


CROWD_COLUMNS = (
    "ms",
    "open",
    "per s",
    "lost",
    "moved",
    "gap p99",
    "added",
    "delay",
    "p99",
    "added",
    "cores",
    "us each",
    "engines",
    "client",
    "late",
)
"""``open``: streams; ``per s``: chunks; ``moved``: out of order, or twice. ``gap``: between two chunks of a
stream; ``delay``: from decode to the client, median. ``cores``: the serving process's; ``engines``,
``client``: theirs. ``late``: the most by which a chunk left behind its time."""


def crowd_cells(row: CrowdRow) -> tuple[str, ...]:
    """In the order of :data:`CROWD_COLUMNS`."""
    direct = row.kind is Kind.DIRECT
    return (
        row.contender,
        f"{row.streams}",
        f"{row.rate:.0f}",
        f"{row.lost}",
        f"{row.disordered}",
        _ms(row.gap_p99),
        "" if direct else _ms(row.added_gap_p99),
        _ms(row.delay),
        _ms(row.delay_p99),
        "" if direct else _ms(row.added_delay_p99),
        "" if direct else f"{row.cores:.2f}",
        "" if direct else f"{row.cores / row.rate * 1e6:.0f}",
        f"{row.engines_cores:.2f}",
        f"{row.client_cores:.2f}",
        f"{row.late * 1000:.0f}",
    )


def crowd_table(rows: Iterable[CrowdRow]) -> RenderableType:
    """Open streams, all contenders."""
    grid = Grid(CROWD_COLUMNS, gap=1)
    for row in rows:
        grid.add(*crowd_cells(row))
    return grid


def memory_line(memory: Memory) -> str:
    """What an idle conversation takes."""
    return (
        f"Memory: {memory.each / 1000:.2f} KB for each idle conversation ({memory.conversations} of them, "
        "turns of 1,000 tokens)"
    )


def verdict_line(verdict: Verdict) -> str:
    """A criterion and its figures."""
    word = {True: "holds", False: "FAILS", None: "open"}[verdict.passed]
    return f"{word}: {verdict.name}: {verdict.text}"


def _by_cell(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.cell.name, []).append(row)
    yield from found.items()


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"
