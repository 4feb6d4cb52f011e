"""A replay on disk: all of it as JSON, its turns as CSV, its tables as Markdown."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from antiphon_server.bench.keep import write_json
from antiphon_server.bench.replay import table
from antiphon_server.bench.replay.chart import draw
from antiphon_server.bench.replay.record import Replay, Served


def write(replay: Replay, folder: Path) -> None:
    """``replay.json``, ``turns.csv``, ``replay.md``, ``replay.png``; the folder is made."""
    write_json(replay, folder / "replay.json")
    write_csv(replay.turns, folder / "turns.csv")
    (folder / "replay.md").write_text("\n".join(markdown(replay)) + "\n", encoding="utf-8")
    draw(replay, folder / "replay.png")


def write_csv(turns: Sequence[Served], path: Path) -> None:
    """A line for each turn, in the order of their ends."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, [field.name for field in fields(Served)])
        lines.writeheader()
        for turn in turns:
            lines.writerow(asdict(turn))


def markdown(replay: Replay) -> Iterator[str]:
    """To be pasted into a page."""
    yield from _table(table.COLUMNS, [table.cells(row) for row in replay.rows])
    yield ""
    yield from _table(table.TOTALS, [table.total_cells(total) for total in replay.totals])
    yield ""
    for line in (*table.outcomes(replay), *table.summary(replay)):
        yield f"- {line}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' for _ in columns)} |"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
