"""A sweep's figures as tables: on the terminal, and in Markdown for documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from antiphon_server.bench import arms
from antiphon_server.bench.grid import Grid
from antiphon_server.bench.sweep.record import Against, Cache, Cell, Sweep, against, cells
from antiphon_server.bench.sweep.verdict import Verdict

TITLES = {
    Cache.EMPTY: "Prefill's own prefix cache empty: evicted, restarted, or another node than last time",
    Cache.WARM: "Prefill's own prefix cache warm: it still holds what it computed of the last prompt",
    Cache.FIRST: "First turns: nobody has anything of the prompt",
}
COLUMNS = (
    "prefix",
    "arm",
    "TTFT ms",
    "quartiles",
    "off/arm",
    "P ms",
    "D ms",
    "P tokens",
    "D→P MB",
    "D→P ms",
    "P→D ms",
    "gap ms",
    "paths",
)


def rows(sweep: Sweep, cache: Cache) -> Iterator[tuple[str, ...]]:
    """In the order of :data:`COLUMNS`."""
    gains: dict[tuple[str, int], Against] = {}
    if arms.OFF in sweep.arms:
        for arm in sweep.arms:
            found = against(sweep, arms.OFF, arm) if arm != arms.OFF else []
            gains |= {(arm, one.length): one for one in found if one.cache is cache}
    for cell in cells(sweep):
        if cell.cache is cache:
            yield _row(cell, gains.get((cell.arm, cell.length)))


def tables(sweep: Sweep) -> RenderableType:
    """One table for each state of prefill's cache."""
    parts: list[RenderableType] = []
    for cache in (*sweep.caches, Cache.FIRST):
        grid = Grid(COLUMNS, keys=2, left=frozenset({"arm", "paths"}), wrapped=frozenset({"paths"}))
        last = None
        for row in rows(sweep, cache):
            if last not in (None, row[0]):
                grid.add()
            grid.add(row[0] if row[0] != last else "", *row[1:])
            last = row[0]
        if last is not None:
            parts += [Text(TITLES[cache], style="bold"), grid, Text()]
    return Group(*parts)


def legend(sweep: Sweep) -> Iterator[str]:
    """How the tables are to be read."""
    plan = sweep.plan
    yield (
        f"Each point: {plan.conversations * plan.repeat} conversations of {plan.turns} turns, {plan.active} "
        f"open at once, {plan.clients} in flight; {plan.new} new tokens a turn behind the prefix, "
        f"{plan.answer} tokens an answer; arms interleaved, warm-up dropped."
    )
    yield (
        "TTFT at the client: median and quartiles. off/arm: median of turn-by-turn ratios. P, D: prefill and "
        "decode engine computing until the first token; D→P, P→D: moving KV; P tokens: computed there; "
        "by the engines' own counters, medians. gap: between tokens. paths: what the router did, and why."
    )


def markdown(sweep: Sweep, verdict: Verdict) -> str:
    """The tables, conditions and verdict, for a document."""
    parts = [f"# Sweep: {sweep.name}", ""]
    parts += [f"- {line}" for line in (*sweep.conditions.lines(), *legend(sweep))]
    for cache in (*sweep.caches, Cache.FIRST):
        found = list(rows(sweep, cache))
        if found:
            parts += ["", f"## {TITLES[cache]}", "", *_markdown(COLUMNS, found)]
    parts += ["", "## Verdict", "", *(f"- {line}" for line in verdict.lines()), ""]
    return "\n".join(parts)


def _markdown(columns: Sequence[str], found: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' for _ in columns)} |"
    for row in found:
        yield f"| {' | '.join(row)} |"


def _row(cell: Cell, gain: Against | None) -> tuple[str, ...]:
    parts = cell.parts
    return (
        f"{cell.length}",
        cell.arm,
        _ms(cell.ttft.median),
        f"{_ms(cell.ttft.low)}-{_ms(cell.ttft.high)}",
        f"{gain.ratio.value:.2f}" if gain is not None else "",
        _ms(parts.prefill),
        _ms(parts.decode),
        f"{cell.computed:.0f}",
        f"{cell.received / 1e6:.1f}",
        _ms(parts.to_prefill),
        _ms(parts.to_decode),
        _ms(cell.gaps.median) if cell.gaps is not None else "",
        ", ".join(f"{count} {path}" for path, count in cell.paths.items()),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}" if seconds >= 0.01 or not seconds else f"{seconds * 1e3:.1f}"
