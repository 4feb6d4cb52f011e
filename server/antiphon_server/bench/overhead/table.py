"""The figures in print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from antiphon_server.bench.overhead.record import Row

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
"""``CPU each``: of the serving process, a request; ``engines``, ``client``: of those. ``per core``: requests for
each second of the serving process's CPU."""


def cells(row: Row) -> tuple[str, ...]:
    """In the order of :data:`COLUMNS`."""
    return (
        row.contender,
        f"{row.count}",
        _ms(row.median),
        _ms(row.p99),
        _ms(row.added) if row.added else "",
        _ms(row.added_p99) if row.added_p99 else "",
        _ms(row.cpu) if row.per_core else "",
        _ms(row.engines_cpu),
        _ms(row.client_cpu),
        f"{row.rate:.0f}",
        f"{row.per_core:.0f}" if row.per_core else "",
    )


def tables(rows: Iterable[Row]) -> RenderableType:
    """One for each cell."""
    parts: list[RenderableType] = []
    for name, own in _by_cell(rows):
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "ms" else "right", no_wrap=True)
        for row in own:
            table.add_row(*cells(row))
        parts += [Text(name, style="bold"), table, Text()]
    return Group(*parts)


def _by_cell(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.cell.name, []).append(row)
    yield from found.items()


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"
