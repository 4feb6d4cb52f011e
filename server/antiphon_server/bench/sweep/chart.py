"""The bench as a picture."""

from __future__ import annotations

from pathlib import Path

from antiphon_server.bench.picture import BLUE, GREY, INK, MUTED, axes_of, save, sheet
from antiphon_server.bench.sweep.record import Cache, Sweep

_TITLES = {Cache.EMPTY: "prefill's cache empty", Cache.WARM: "prefill's cache warm"}


def draw(sweep: Sweep, path: Path) -> None:
    """Write a PNG: TTFT over prompt length, a panel for each state of prefill's cache."""
    states = [cache for cache in Cache if any(row.cache is cache for row in sweep.rows)]
    longest = sweep.longest
    same = "answers identical" if sweep.identical else "ANSWERS DIFFER"
    gain = f"{longest.ratio:.1f}x sooner at {longest.tokens} tokens"
    title = f"Next turn's first token, {_TITLES[longest.cache]}: {gain}, {same}"
    figure = sheet(title, sweep.conditions.lines())
    panels = figure.subplots(1, len(states), squeeze=False, sharey=True)[0]
    for axes, cache in zip(panels, states, strict=True):
        rows = [row for row in sweep.rows if row.cache is cache]
        lengths = [row.tokens for row in rows]
        axes_of(axes, f"Time to first token, seconds: {_TITLES[cache]}")
        axes.plot(lengths, [row.cold.ttft for row in rows], color=GREY, marker="o", label="cold", linewidth=2)
        axes.plot(
            lengths, [row.reuse.ttft for row in rows], color=BLUE, marker="o", label="reuse", linewidth=2
        )
        for row in rows:
            axes.annotate(
                f"{row.ratio:.1f}x",
                (row.tokens, row.reuse.ttft),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=BLUE,
                weight="bold",
            )
        axes.set_xticks(lengths)
        axes.set_xlabel("prompt tokens of the second turn", color=MUTED, fontsize=8.5)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, loc="upper left", labelcolor=INK)
    save(figure, path)
