"""The run as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from antiphon_server.bench.overhead.contenders import Kind
from antiphon_server.bench.overhead.record import Row, size_name
from antiphon_server.bench.overhead.report import Report
from antiphon_server.bench.picture import BLUE, GREY, INK, MUTED, PALE, axes_of, save, sheet

_COLOURS: Mapping[Kind, str] = {Kind.DIRECT: GREY, Kind.LEAST: PALE, Kind.OURS: BLUE, Kind.PEER: INK}


def draw(report: Report, path: Path) -> bool:
    """Latency of one request at a time, a panel for each size, whole replies. False: there is none such."""
    alone = [row for row in report.rows if row.cell.connections == 1 and not row.cell.stream]
    sizes = sorted({row.cell.size for row in alone})
    if not sizes:
        return False
    figure = sheet(
        "A router's latency over engines that answer at once: whole replies, alone, median, ms",
        report.machine.lines(),
    )
    panels = figure.subplots(1, len(sizes), squeeze=False, sharey=True)[0]
    for axes, size in zip(panels, sizes, strict=True):
        rows = [row for row in alone if row.cell.size == size]
        axes_of(axes, size_name(size))
        axes.grid(visible=False)
        names = [row.contender for row in rows]
        values = [row.median * 1000 for row in rows]
        bars = axes.barh(names, values, color=[_colour(row) for row in rows])
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3, fontsize=8, color=MUTED)
        axes.set_xlim(0, max(values) * 1.18)
        axes.set_xticks([])
    panels[0].invert_yaxis()
    save(figure, path)
    return True


def _colour(row: Row) -> str:
    return _COLOURS[row.kind]
