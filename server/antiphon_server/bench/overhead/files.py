"""A run in files: JSON, Markdown and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from antiphon_server.bench.keep import write_json
from antiphon_server.bench.overhead.chart import draw
from antiphon_server.bench.overhead.contenders import Kind
from antiphon_server.bench.overhead.record import Row, size_name
from antiphon_server.bench.overhead.report import Report
from antiphon_server.bench.overhead.table import CROWD_COLUMNS, crowd_cells, memory_line, verdict_line


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """All three, in ``folder``; their paths."""
    text, picture, record = (folder / f"router.{ending}" for ending in ("md", "png", "json"))
    write_json(report, record)
    text.write_text("\n".join(markdown(report)) + "\n")
    drawn = draw(report, picture)
    return (text, record, picture) if drawn else (text, record)


def markdown(report: Report) -> Iterator[str]:
    """A table for each size and manner, the crowds, what an idle conversation takes, the verdicts."""
    for caption in report.captions():
        yield caption
        yield ""
    for size, stream in dict.fromkeys((row.cell.size, row.cell.stream) for row in report.rows):
        own = [row for row in report.rows if (row.cell.size, row.cell.stream) == (size, stream)]
        yield f"**{size_name(size)}, {'streaming' if stream else 'whole replies'}** (ms; median / p99)"
        yield ""
        yield from _matrix(own)
        yield ""
    if report.crowds:
        yield "**Open streams** (ms)"
        yield ""
        yield from _lines(("", *CROWD_COLUMNS[1:]), map(crowd_cells, report.crowds))
        yield ""
    if report.memory is not None:
        yield memory_line(report.memory)
        yield ""
    for verdict in report.verdicts:
        yield f"- {verdict_line(verdict)}"


def _matrix(rows: Sequence[Row]) -> Iterator[str]:
    levels = list(dict.fromkeys(row.cell.connections for row in rows))
    heads = [
        f"{'alone' if level == 1 else f'{level} conn.'}{what}"
        for level in levels
        for what in ("", ", added", ", req/s", ", req/s/core")
    ]
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row.contender, {})[row.cell.connections] = row
    yield from _lines(
        ("", *heads), ((name, *_cells(own[level] for level in levels)) for name, own in found.items())
    )


def _cells(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        yield f"{_ms(row.median)} / {_ms(row.p99)}"
        yield "" if row.kind is Kind.DIRECT else f"{_ms(row.added)} / {_ms(row.added_p99)}"
        yield f"{row.rate:.0f}"
        yield f"{row.per_core:.0f}" if row.per_core is not None else ""


def _lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * (len(heads) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"
