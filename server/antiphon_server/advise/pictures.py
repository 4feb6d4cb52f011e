"""Pictures of an advice, as SVG that takes its colours from the page around it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

from antiphon_server.advise import answers
from antiphon_server.advise.advice import Advice
from antiphon_server.advise.curves import Points
from antiphon_server.advise.percent import percent
from antiphon_server.bench.picture import BLUE, GREY, INK, LINES, MUTED, PALE, axes_of

_COLOURS = {
    INK: "--ink",
    MUTED: "--muted",
    LINES: "--lines",
    GREY: "--grey",
    BLUE: "--blue",
    PALE: "--pale",
}
_SIZE = (4.5, 2.6)
"""Inches: as wide as a phone, so that its letters are read there as they are."""


def pictures(advice: Advice) -> dict[str, list[str]]:
    """SVG by the name of the answer that it belongs to; ``tokens`` belongs to the verdict."""
    drawn: dict[str, list[str]] = {"tokens": [_draw("tokens", _tokens, advice)]}
    drawn["repeats"] = [_draw("repeats", _repeats, advice)]
    drawn["link"] = [_draw("link", _link, advice)]
    drawn["kept"] = []
    if advice.curves.gaps:
        drawn["kept"].append(_draw("gaps", _gaps, advice))
    if advice.sized and advice.curves.pinned:
        drawn["kept"].append(_draw("pinned", _pinned, advice))
    drawn["ttft"] = [_draw("cold", _cold, advice), _draw("warm", _warm, advice)]
    return drawn


def _draw(name: str, draw: Callable[[Axes, Advice], str], advice: Advice) -> str:
    """``draw`` fills the axes and says in words what is to be seen."""
    with _svg_of(name) as out:
        figure = Figure(figsize=_SIZE, layout="constrained")
        figure.patch.set_alpha(0.0)
        axes = figure.subplots()
        axes.patch.set_alpha(0.0)
        words = draw(axes, advice)
        figure.savefig(out, format="svg", metadata={"Date": None})
    return _themed(out.getvalue(), words)


@contextmanager
def _svg_of(name: str) -> Iterator[io.StringIO]:
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "svg.id": name}):
        yield io.StringIO()


def _themed(svg: str, words: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    size = re.search(r'viewBox="[^"]*"', svg)
    assert size is not None
    svg = re.sub(r"<svg[^>]*>", f'<svg {size[0]} role="img" aria-label="{words}">', svg, count=1)
    svg = re.sub(r"font: ([^;\"]*?)([\d.]+px) [^;\"]*", r"font: \1\2 system-ui, sans-serif", svg)
    for colour, name in _COLOURS.items():
        svg = re.sub(colour, f"var({name})", svg, flags=re.IGNORECASE)
    return svg


def _tokens(axes: Axes, advice: Advice) -> str:
    part = advice.funnel
    bars = (
        ("reused", part.used, BLUE),
        ("gone before the turn", part.gone, PALE),
        ("gap not known", part.unknown, PALE),
        ("not worth fetching", part.short, PALE),
        ("first turns", part.first, GREY),
        ("new text", part.fresh, GREY),
        ("history changed", part.rewritten, GREY),
    )
    shown = [bar for bar in bars if bar[1]][::-1]
    axes_of(axes, "All prompt tokens, if prefill's cache is cold")
    axes.grid(visible=False)
    axes.barh([name for name, _, _ in shown], [n for _, n, _ in shown], color=[c for _, _, c in shown])
    for place, (_, tokens, _) in enumerate(shown):
        axes.text(
            tokens + part.total * 0.01, place, _share(part.share(tokens)), va="center", fontsize=9, color=INK
        )
    axes.set_xlim(0, max(tokens for _, tokens, _ in shown) * 1.13)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(labelsize=9)
    return f"Bars: {percent(part.share(part.used))} of all prompt tokens are reused"


def _share(share: float) -> str:
    return percent(share) if share >= 0.005 else "<1%"


def _repeats(axes: Axes, advice: Advice) -> str:
    stages = advice.repetition.stages
    names = [f"{s.first}" if s.first == s.last else f"{s.first}-{s.last or ''}" for s in stages]
    again = [stage.prompt * stage.share for stage in stages]
    axes_of(axes, "Median prompt by turn, of the conversations that get so far")
    axes.bar(names, again, color=BLUE, label="repeats the turn before")
    axes.bar(
        names,
        [s.prompt - a for s, a in zip(stages, again, strict=True)],
        bottom=again,
        color=GREY,
        label="new",
    )
    axes.yaxis.set_major_formatter(_of_tokens())
    axes.set_ylim(0, max(stage.prompt for stage in stages) * 1.3)
    _legend(axes)
    return "Bars: median prompt and its repeated part, by turn of a conversation"


def _link(axes: Axes, advice: Advice) -> str:
    curve = advice.curves
    axes_of(axes, "A prefix: seconds to compute and to fetch, by its tokens")
    axes.plot(*_xy(curve.computing), color=GREY, linewidth=2, label="compute")
    axes.plot(*_xy(curve.moving), color=BLUE, linewidth=2, label="fetch")
    low, high = _between(curve.prefixes, 0.1), _between(curve.prefixes, 0.9)
    if high > low:
        axes.axvspan(low, high, color=PALE, alpha=0.35, linewidth=0, label="eight in ten of your turns")
    axes.xaxis.set_major_formatter(_of_tokens())
    axes.set_xlim(0, curve.computing[-1][0])
    axes.set_ylim(0, None)
    _legend(axes)
    return "Lines: seconds to compute and to fetch a prefix, by its length"


def _gaps(axes: Axes, advice: Advice) -> str:
    keep = advice.retention.chosen
    axes_of(axes, "Share of what repeats that has come back, by time")
    points = [(max(x, 0.5), y) for x, y in advice.curves.gaps]
    axes.step(*_xy([(points[0][0], 0.0), *points]), where="post", color=BLUE, linewidth=2)
    axes.axvline(keep.keep, color=INK, linewidth=1, linestyle=(0, (3, 2)))
    axes.text(
        keep.keep, 0.04, f" kept {answers.seconds(keep.keep)}", fontsize=9, color=INK, ha="left", va="bottom"
    )
    axes.set_xscale("log")
    axes.set_xlim(right=max(keep.keep * 8, points[-1][0] * 1.1))
    axes.set_ylim(0, 1.03)
    _times(axes, 1e3)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return f"Line: {percent(keep.found)} of what repeats has come back when it is given up"


def _pinned(axes: Axes, advice: Advice) -> str:
    points = advice.curves.pinned
    axes_of(axes, "Tokens pinned on decode by conversations at rest, by time")
    axes.fill_between(*_xy(points), color=PALE, step="post", linewidth=0)
    axes.step(*_xy(points), where="post", color=BLUE, linewidth=1)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter(_of_tokens())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: answers.seconds(value) if value else "0"))
    return "Line: tokens pinned on decode over the time of the log"


def _cold(axes: Axes, advice: Advice) -> str:
    curve = advice.curves
    return _ttft(axes, "cold", curve.off_cold, curve.on_cold)


def _warm(axes: Axes, advice: Advice) -> str:
    curve = advice.curves
    return _ttft(axes, "warm", curve.off_warm, curve.on_warm)


def _ttft(axes: Axes, state: str, off: Points, on: Points) -> str:
    axes_of(axes, f"Expected TTFT, prefill's cache {state}: share of turns")
    axes.plot(*_xy(off), color=GREY, linewidth=2.5, label="without reuse")
    axes.plot(*_xy(on), color=BLUE, linewidth=1.5, label="with reuse")
    axes.set_xscale("log")
    axes.set_ylim(0, 1.03)
    axes.set_yticks([0.0, 0.25, 0.5, 0.75, 0.95])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _times(axes, off[-1][0] / max(on[0][0], 1e-9))
    _legend(axes, "lower right")
    return f"Lines: expected TTFT with and without reuse where prefill's cache is {state}"


def _times(axes: Axes, span: float) -> None:
    """Seconds along a logarithmic axis. ``span``: its end by its begin."""
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if span < 30 else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: answers.seconds(value)))
    axes.xaxis.set_minor_locator(NullLocator())


def _legend(axes: Axes, place: Literal["upper left", "lower right"] = "upper left") -> None:
    axes.legend(loc=place, frameon=False, fontsize=9, labelcolor=INK)


def _xy(points: Points | list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _between(points: Points, share: float) -> float:
    return next((x for x, y in points if y >= share - 1e-9), 0.0)


def _of_tokens() -> FuncFormatter:
    return FuncFormatter(lambda value, _: answers.tokens(value))
