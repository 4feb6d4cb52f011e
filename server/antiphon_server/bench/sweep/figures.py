"""A sweep as pictures, for each state of prefill's cache: TTFT over length, and what it is spent on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from antiphon_server.bench import arms
from antiphon_server.bench.picture import BLUE, INK, MUTED, axes_of, save, sheet
from antiphon_server.bench.sweep.record import Cache, Cell, Sweep, against, cells
from antiphon_server.bench.sweep.table import legend
from antiphon_server.bench.sweep.verdict import Verdict, where

TEAL = "#0f9d8a"
AMBER = "#d98a00"
COLOURS: Mapping[str, str] = {
    arms.OFF: "#7d8790",
    arms.REUSE: BLUE,
    arms.APPEND: AMBER,
    arms.AUTO: INK,
    arms.CONFIGURED: INK,
}
SPARE = (TEAL, "#8250df", "#bf3989")
PARTS = (
    ("prefill", "prefill computes", BLUE),
    ("to_prefill", "KV, decode to prefill", "#f2a33a"),
    ("decode", "decode computes", "#8ab4f8"),
    ("to_decode", "KV, prefill to decode", "#f7d08a"),
    ("rest", "HTTP, router, tokenizers, waiting", "#dfe4e8"),
)
FORMATS = (".png", ".svg")
BARS = 0.84
"""Of the room between two lengths."""


def draw(sweep: Sweep, verdict: Verdict, folder: Path) -> list[Path]:
    """Two figures for each state of prefill's cache that was measured, as PNG and SVG."""
    same = "ANSWERS DIFFER" if verdict.differences else "answers identical"
    if not verdict.compared:
        same = "answers not compared"
    every = list(cells(sweep))
    written: list[Path] = []
    for cache in sweep.caches:
        found = [cell for cell in every if cell.cache is cache]
        for name, figure in (
            (f"ttft-{cache}", _ttft(sweep, cache, found, same)),
            (f"split-{cache}", _split(sweep, cache, found, same)),
        ):
            paths = [folder / f"{name}{ending}" for ending in FORMATS]
            save(figure, *paths)
            written += paths
    return written


def colour(sweep: Sweep, arm: str) -> str:
    """The same in every figure."""
    others = [one for one in sweep.arms if one not in COLOURS]
    return COLOURS.get(arm) or SPARE[others.index(arm) % len(SPARE)]


def _ttft(sweep: Sweep, cache: Cache, found: Sequence[Cell], same: str) -> Figure:
    figure = sheet(
        f"Time to first token, {where(cache)}; {same}",
        _caption(sweep, cache, "Lines: medians of turns 2 and later; bands: quartiles."),
        size=(10, 5.2),
    )
    axes = figure.subplots()
    axes_of(axes, "milliseconds")
    ends: list[tuple[float, str, str]] = []
    gains = {
        arm: one.ratio.value
        for arm in sweep.arms
        for one in against(sweep, arms.OFF, arm)
        if arm != arms.OFF and (one.cache, one.length) == (cache, sweep.plan.lengths[-1])
    }
    for arm in sweep.arms:
        own = [cell for cell in found if cell.arm == arm]
        lengths = [cell.length for cell in own]
        middle = [cell.ttft.median * 1e3 for cell in own]
        shade = colour(sweep, arm)
        dashed = (0, (4, 2)) if arm in (arms.AUTO, arms.CONFIGURED) else "solid"
        axes.fill_between(
            lengths,
            [cell.ttft.low * 1e3 for cell in own],
            [cell.ttft.high * 1e3 for cell in own],
            color=shade,
            alpha=0.15,
            linewidth=0,
        )
        axes.plot(
            lengths, middle, color=shade, marker="o", markersize=5, label=arm, linewidth=2, linestyle=dashed
        )
        if own:
            gain = f"   {gains[arm]:.1f}x sooner" if gains.get(arm, 0.0) > 1.05 else ""
            ends.append((middle[-1], f"{arm}  {middle[-1]:,.0f} ms{gain}", shade))
    axes.set_xticks(sweep.plan.lengths, [f"{length:,}" for length in sweep.plan.lengths])
    axes.set_xlabel("tokens of the prefix that a conversation starts with", color=MUTED, fontsize=8.5)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.03)
    _name_ends(axes, ends, sweep.plan.lengths[-1])
    return figure


def _name_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], x: float) -> None:
    """Names and gains beside the last points, moved apart where they would lie on each other."""
    gap = axes.get_ylim()[1] * 0.055
    at = -gap
    for value, text, shade in sorted(ends):
        at = max(value, at + gap)
        axes.annotate(
            text,
            (x, value),
            xytext=(1.02, at),
            textcoords=("axes fraction", "data"),
            va="center",
            fontsize=9,
            color=shade,
            weight="bold",
            annotation_clip=False,
        )


def _split(sweep: Sweep, cache: Cache, found: Sequence[Cell], same: str) -> Figure:
    figure = sheet(
        f"Where the time to first token goes, {where(cache)}; {same}",
        _caption(
            sweep,
            cache,
            "Medians of turns 2 and later, by the engines' counters; the rest is what is left of TTFT.",
        ),
        size=(10, 5.2),
    )
    axes = figure.subplots()
    axes_of(axes, "milliseconds", above=20)
    width = BARS / len(sweep.arms)
    ticks: list[tuple[float, str]] = []
    for place, length in enumerate(sweep.plan.lengths):
        for number, arm in enumerate(sweep.arms):
            cell = next((c for c in found if (c.arm, c.length) == (arm, length)), None)
            if cell is None:
                continue
            x = place + (number - (len(sweep.arms) - 1) / 2) * width
            bottom = 0.0
            for name, label, shade in PARTS:
                height = getattr(cell.parts, name) * 1e3
                first = not ticks
                axes.bar(x, height, width * 0.86, bottom=bottom, color=shade, label=label if first else None)
                bottom += height
            ticks.append((x, arm))
    axes.set_xticks([x for x, _ in ticks], [name for _, name in ticks], rotation=90, fontsize=8)
    for place, length in enumerate(sweep.plan.lengths):
        axes.annotate(
            f"{length:,} tokens",
            (place, 0),
            xytext=(0, -58),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=INK,
        )
    # Above the bars, which may be high anywhere.
    axes.legend(
        frameon=False,
        labelcolor=INK,
        fontsize=8.5,
        ncols=len(PARTS),
        loc="lower left",
        bbox_to_anchor=(-0.01, 0.99),
        columnspacing=1.2,
        handlelength=1.2,
    )
    return figure


def _caption(sweep: Sweep, cache: Cache, how: str) -> tuple[str, ...]:
    known = dataclasses.replace(sweep.conditions, prefill_cache=cache.value)
    return (next(iter(legend(sweep))), how, *known.lines())
