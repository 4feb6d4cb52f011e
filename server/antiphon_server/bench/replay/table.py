"""A replay in print."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from antiphon_server.bench.grid import Grid
from antiphon_server.bench.replay.record import KINDS, Replay, Row, Total

COLUMNS = (
    "turn",
    "arm",
    "turns",
    "prompt",
    "TTFT p50",
    "p95",
    "p99",
    "mean",
    "between tokens p50",
    "p99",
    "reuse",
    "not computed",
)
TOTALS = ("arm", "turns", "errors", "turns/s", "answer tokens/s", "matched of held", "P computed", "D→P KV")
_SHOWN = 10


def cells(row: Row) -> tuple[str, ...]:
    """In the order of :data:`COLUMNS`."""
    return (
        row.kind,
        row.arm,
        f"{row.turns}",
        f"{row.prompt:.0f}",
        *map(_seconds, (row.ttft, row.p95, row.p99, row.mean, row.wait, row.wait_p99)),
        f"{row.reused:.0%}",
        f"{row.cached:.0%}",
    )


def total_cells(total: Total) -> tuple[str, ...]:
    """In the order of :data:`TOTALS`."""
    left = f" ({total.left_out} turns left out)" if total.left_out else ""
    return (
        total.arm,
        f"{total.turns}",
        f"{total.errors}{left}",
        f"{total.turns_per_second:.2f}",
        f"{total.tokens_per_second:.0f}",
        f"{total.matched / total.held:.1%}" if total.held else "-",
        f"{total.prefill.computed:.0f}" if total.prefill is not None else "-",
        f"{total.prefill.received / 1e6:.1f} MB" if total.prefill is not None else "-",
    )


def tables(replay: Replay) -> RenderableType:
    """Turns by their place in the conversation, then each arm in all."""
    by_class, totals = Grid(COLUMNS, keys=2), Grid(TOTALS)
    for kind in KINDS:
        for row in replay.rows:
            if row.kind == kind:
                by_class.add(*cells(row))
    for total in replay.totals:
        totals.add(*total_cells(total), style="red" if total.errors else None)
    return Group(by_class, Text(), totals)


def outcomes(replay: Replay) -> Iterator[str]:
    """Which paths each arm took, and why."""
    for total in replay.totals:
        told = ", ".join(f"{count} {outcome}" for outcome, count in total.outcomes.items())
        declined = ", ".join(f"{count} {reason}" for reason, count in total.declined.items())
        yield f"{total.arm}: {told}" + (f"; not appended: {declined}" if declined else "")


def summary(replay: Replay) -> Iterator[str]:
    """What the figures come to; the last line is the one to quote."""
    yield from replay.setting
    yield from replay.conditions.lines()
    yield from faults(replay)
    yield from verdicts(replay)


def faults(replay: Replay) -> Iterator[str]:
    """What must not be."""
    if replay.stopped is not None:
        yield f"STOPPED  {replay.stopped}"
    failed = [turn for turn in replay.turns if turn.error is not None]
    for turn in failed[:_SHOWN]:
        yield f"FAILED  {turn.arm}, {turn.conversation}, turn {turn.turn}: {turn.error}"
    if len(failed) > _SHOWN:
        yield f"and {len(failed) - _SHOWN} more turns failed"
    for difference in replay.differences[:_SHOWN]:
        yield f"ANSWERS DIFFER  {difference}"
    if len(replay.differences) > _SHOWN:
        yield f"and {len(replay.differences) - _SHOWN} more conversations differ"
    for idle in replay.idle:
        yield f"{'note:' if idle.chosen else 'FAILED '} {idle}"


def verdicts(replay: Replay) -> Iterator[str]:
    """Answers, then ratios."""
    if len(replay.arms) > 1:
        differ = f"{len(replay.differences)} conversations' answers DIFFER: this is a defect of the server"
        equal = f"answers of {replay.compared} pairs of turns compared: all equal, token for token"
        yield differ if replay.differences else equal if replay.compared else "no answers could be compared"
    for ratio in replay.ratios:
        yield (
            f"{ratio.slow} / {ratio.fast}, median TTFT of turns 2+: {ratio.medians:.2f} "
            f"(of the same turns' own ratios: {ratio.paired:.2f})"
            + ("" if ratio.enough else f": below the {ratio.least:g} that was asked for")
        )


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 9.995 else f"{value * 1000:.0f} ms"
