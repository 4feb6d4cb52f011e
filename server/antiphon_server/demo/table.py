"""The demo's table, live and at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table

from antiphon_server.demo.record import Measured, Record, Row, totals

COLUMNS = (
    "turn",
    "tool called",
    "prompt",
    "matched",
    "path",
    "TTFT without",
    "with reuse",
    "ratio",
    "D→P KV",
)
NOT_YET = ""


def cells(row: Row) -> tuple[str, ...]:
    """A row's cells, in the order of :data:`COLUMNS`; empty where nothing is known yet."""
    known = row.reusing or row.without
    reusing = row.reusing
    return (
        str(row.turn),
        row.name,
        f"{known.timed.prompt_tokens}" if known else NOT_YET,
        f"{reusing.timed.outcome.matched}" if reusing else NOT_YET,
        f"{reusing.timed.outcome.path} ({reusing.timed.outcome.reason})" if reusing else NOT_YET,
        _seconds(row.without),
        _seconds(reusing),
        _times(row.ratio),
        size(reusing.received) if reusing else NOT_YET,
    )


def table(rows: Sequence[Row]) -> RenderableType:
    """The rows so far, and their sum once both runs have begun."""
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in COLUMNS:
        left = column in {"tool called", "path"}
        shown.add_column(column, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        mark = "red" if row.same is False else None
        shown.add_row(*cells(row), style=mark)
    without, reusing = totals(rows)
    if reusing:
        speed = _times(without / reusing)
        shown.add_row(
            "", "all turns", "", "", "", f"{without:.2f} s", f"{reusing:.2f} s", speed, "", style="bold"
        )
    return shown


def line(row: Row, run: str, measured: Measured) -> str:
    """One finished turn of one run, for places without a terminal."""
    timed = measured.timed
    outcome = timed.outcome
    reused = f", {outcome.matched} matched, {size(measured.received)} D→P" if measured.received else ""
    return (
        f"{run:<13} turn {row.turn}  TTFT {timed.ttft:6.2f} s  prompt {timed.prompt_tokens:>5}  "
        f"{outcome.path} ({outcome.reason}){reused}  {row.shown}"
    )


def summary(record: Record) -> Iterator[str]:
    """What the figures come to, line by line."""
    rows, verdict = record.rows, record.verdict
    without, reusing = totals(rows, first=1)
    if reusing:
        speed = f"{without:.1f} s without reuse, {reusing:.1f} s with it, {without / reusing:.1f}x"
        yield f"TTFT of turns 2 to {len(rows)}: {speed}"
    drift = max((row.drift for row in rows), default=0.0)
    same = "yes" if verdict.identical else "NO"
    yield f"answers identical: {same} ({_tokens(rows)} tokens compared, log-probabilities within {drift:.1e})"
    for row in rows:
        if row.same is False:
            yield f"  turn {row.turn} differs: {_difference(row)}"
    if not verdict.reused:
        yield "nothing was reused: " + ", ".join(sorted({_reason(row) for row in rows[1:]}))
    left = "unknown (engines without Antiphon)" if verdict.pinned is None else str(verdict.pinned)
    yield f"requests pinned on the engines after close: {left} (checked {record.settled:.1f} s after it)"


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e6:.1f} MB" if count else "0"


def _reason(row: Row) -> str:
    return row.reusing.timed.outcome.reason if row.reusing else "not run"


def _difference(row: Row) -> str:
    assert row.without is not None
    assert row.reusing is not None
    left, right = row.without.timed, row.reusing.timed
    if left.prompt != right.prompt:
        return "its prompt is another, as an earlier answer was"
    said, now = (timed.answer.text + timed.answer.arguments for timed in (left, right))
    return f"{said!r} without reuse, {now!r} with"


def _tokens(rows: Sequence[Row]) -> int:
    return sum(len(row.without.timed.answer.ids) for row in rows if row.without)


def _seconds(measured: Measured | None) -> str:
    return f"{measured.timed.ttft:.2f} s" if measured else NOT_YET


def _times(value: float | None) -> str:
    return f"{value:.1f}x" if value is not None else NOT_YET
