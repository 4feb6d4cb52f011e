"""The bench's tables, in print."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from antiphon_server.bench.sweep.record import Cache, Row, Sweep

COLUMNS = (
    "prompt",
    "TTFT cold",
    "TTFT reuse",
    "cold / reuse",
    "P computes cold",
    "reuse",
    "P leg cold",
    "reuse",
    "D→P KV",
    "in",
    "answers",
)
TITLES = {
    Cache.EMPTY: "Prefill's own cache empty (evicted, restarted, or another node than last time)",
    Cache.WARM: "Prefill's own cache warm (it still holds the last prompt; decode alone has the answer)",
}


def cells(row: Row) -> tuple[str, ...]:
    """In the order of :data:`COLUMNS`."""
    cold, reuse = row.cold, row.reuse
    return (
        f"{row.tokens}",
        _seconds(cold.ttft),
        _seconds(reuse.ttft),
        f"{row.ratio:.2f}",
        f"{cold.computed:.0f}",
        f"{reuse.computed:.0f}",
        _seconds(cold.leg),
        _seconds(reuse.leg),
        f"{reuse.received / 1e6:.1f} MB",
        f"{reuse.receiving * 1000:.0f} ms",
        "identical" if row.same else "DIFFER",
    )


def tables(sweep: Sweep) -> RenderableType:
    """One table for each state of prefill's cache that was measured."""
    parts: list[RenderableType] = []
    for cache, title in TITLES.items():
        rows = [row for row in sweep.rows if row.cache is cache]
        if not rows:
            continue
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*cells(row), style=None if row.same else "red")
        parts += [Text(title, style="bold"), table, Text()]
    return Group(*parts)


def summary(sweep: Sweep, at_least: float | None) -> Iterator[str]:
    """What the figures come to; the last line is the one to quote."""
    yield (
        f"Second turns: {sweep.new} new tokens after an answer of {sweep.answer}; median of {sweep.repeat}; "
        "P computes and P leg by prefill's own counters."
    )
    yield from sweep.conditions.lines()
    for row in sweep.rows:
        if not row.reused:
            yield f"{row.tokens} tokens, cache {row.cache.value}: not all was reused: {row.reuse.outcome}"
    if not sweep.identical:
        yield "answers differ between cold and reuse: this is a defect, whatever the times say"
    longest = sweep.longest
    if at_least is not None and longest.ratio < at_least:
        yield f"below the {at_least:g} that was asked for"
    yield f"cold / reuse at {longest.tokens} tokens: {longest.ratio:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
