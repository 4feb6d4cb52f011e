"""A replay as a picture: TTFT by the turn's place in its conversation, and how it is spread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from antiphon_server.bench.picture import BLUE, GREY, INK, MUTED, PALE, axes_of, logarithmic, save, sheet
from antiphon_server.bench.replay.record import AFTER, Replay
from antiphon_server.bench.turn_class import CLASSES

_MORE = ("#7a5195", "#ef8a17", "#2a9d8f", "#c44536")
_NAMED = {"off": GREY, "cold": GREY, "reuse": PALE, "append": "#7fb3a6", "auto": BLUE, "on": BLUE}
_WIDTH = 0.8
"""Of a group of bars."""


def draw(replay: Replay, path: Path) -> None:
    """Write a PNG."""
    figure = sheet(_title(replay), (*replay.setting, *replay.conditions.lines()))
    left, right = figure.subplots(1, 2)
    colours = _colours(replay.arms)
    _by_class(left, replay, colours)
    _spread(right, replay, colours)
    save(figure, path)


def _title(replay: Replay) -> str:
    first = "Replay: time to first token by turn"
    if replay.ratios:
        ratio = replay.ratios[-1]
        first = f"Replay: median TTFT of turns 2+, {ratio.slow} / {ratio.fast} = {ratio.medians:.2f}"
    if len(replay.arms) == 1:
        return first
    if not replay.compared:
        return f"{first}, answers not compared"
    return f"{first}, {'ANSWERS DIFFER' if replay.differences else 'answers identical'}"


def _colours(arms: Sequence[str]) -> dict[str, str]:
    if len(arms) == 1:
        return {arms[0]: BLUE}
    more = iter(_MORE * (1 + len(arms) // len(_MORE)))
    return {arm: _NAMED[arm] if arm in _NAMED else next(more) for arm in arms}


def _by_class(axes: Axes, replay: Replay, colours: dict[str, str]) -> None:
    kinds = [kind for kind in CLASSES if any(row.kind == kind for row in replay.rows)]
    axes_of(axes, "Median TTFT by turn, seconds; whiskers to p95 (→: above)")
    width = _WIDTH / len(replay.arms)
    whiskers_at: list[tuple[float, float]] = []
    for place, arm in enumerate(replay.arms):
        rows = [(kinds.index(row.kind), row) for row in replay.rows if row.arm == arm and row.kind in kinds]
        at = [index - _WIDTH / 2 + width * (place + 0.5) for index, _ in rows]
        heights = [row.ttft for _, row in rows]
        whiskers_at += zip(at, (row.p95 for _, row in rows), strict=True)
        whiskers = [[0.0] * len(rows), [row.p95 - row.ttft for _, row in rows]]
        axes.bar(
            at, heights, width * 0.92, color=colours[arm], label=arm, yerr=whiskers, ecolor=MUTED,
            error_kw={"elinewidth": 1.0, "capsize": 2},
        )  # fmt: skip
    axes.set_xticks(range(len(kinds)), [f"turn {kind}" for kind in kinds])
    # A rewritten prompt may take a hundred times as long as the usual turn: whiskers may leave the picture.
    shown = [row for row in replay.rows if row.kind in kinds]
    tallest = max((row.ttft for row in shown), default=1.0)
    top = min(4 * tallest, 1.05 * max((row.p95 for row in shown), default=1.0))
    axes.set_ylim(0, top)
    for middle, p95 in cut(whiskers_at, top):
        axes.annotate(
            f"{p95:.3g} →", (middle, top), (0, -1), textcoords="offset points", rotation=90, ha="right",
            va="top", fontsize=7.5, color=MUTED,
        )  # fmt: skip
    if len(replay.arms) > 1:
        axes.legend(frameon=False, loc="upper left", labelcolor=INK)


def cut(whiskers: Sequence[tuple[float, float]], top: float) -> list[tuple[float, float]]:
    """Those whose end, the second of each, is above the picture."""
    return [(at, end) for at, end in whiskers if end > top]


def _spread(axes: Axes, replay: Replay, colours: dict[str, str]) -> None:
    axes_of(axes, f"Share of turns {AFTER} with their first token within seconds")
    for arm in replay.arms:
        own = sorted(t.ttft for t in replay.turns if t.arm == arm and t.error is None and t.turn > 1)
        if own:
            axes.ecdf(own, color=colours[arm], linewidth=2, label=arm)
    if any(turn.error is None and turn.turn > 1 and turn.ttft > 0 for turn in replay.turns):
        logarithmic(axes)
    axes.set_ylim(0, 1.02)
