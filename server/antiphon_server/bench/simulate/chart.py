"""Simulations as pictures, labelled as such."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antiphon_server.bench.picture import BLUE, GREY, INK, MUTED, axes_of, logarithmic, save, sheet
from antiphon_server.bench.simulate.announcement import Published
from antiphon_server.bench.simulate.published import Point
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.report import Report
from antiphon_server.bench.simulate.served import GROUPS

_COLOURS = {
    "cold": GREY,
    "off": GREY,
    "proxy": "#d9822b",
    "reuse": "#8a63d2",
    "append": "#2da44e",
    "auto": BLUE,
}
_DOTS = 400


def compared(report: Report, path: Path) -> None:
    """TTFT of all turns as a distribution, and its mean by a turn's place in its conversation."""
    figure = sheet("Simulated time to first token", report.conditions(), size=(10, 5))
    left, right = figure.subplots(1, 2)
    axes_of(left, "Share of turns that have their first token by then")
    axes_of(right, "Mean, seconds, by turn of the conversation")
    groups = [name for name in GROUPS[1:] if any(result.ttft[name] for result in report.results)]
    width = 0.8 / len(report.results)
    for number, result in enumerate(report.results):
        colour = _COLOURS.get(result.policy, INK)
        ranked = sorted(result.samples)
        picked = [ranked[round(i * (len(ranked) - 1) / _DOTS)] for i in range(_DOTS + 1)]
        left.plot(
            picked, [i / _DOTS for i in range(_DOTS + 1)], color=colour, label=result.policy, linewidth=2
        )
        means = [found.mean if (found := result.ttft[name]) else 0.0 for name in groups]
        places = [i + (number - (len(report.results) - 1) / 2) * width for i in range(len(groups))]
        right.bar(places, means, width * 0.9, color=colour, label=result.policy)
    logarithmic(left)
    left.set_xlabel("seconds", color=MUTED, fontsize=8.5)
    left.set_ylim(0, 1)
    left.legend(frameon=False, labelcolor=INK, loc="lower right")
    right.set_xticks(range(len(groups)), [f"turn {name}" for name in groups])
    save(figure, path)


def curve(
    fits: Sequence[tuple[Published, RateModel, Sequence[Point]]],
    path: Path,
) -> None:
    """TTFT over the length of the prompt's beginning, reuse off and on, with the published ends."""
    lines = (
        "SIMULATION between the published ends (circles): nothing on these curves was measured by us.",
        "1 prefill + 1 decode engine, 10 conversations x 10 turns, 150 tokens in and 300 out, 2 clients, "
        "prefill's own prefix cache off; mean of all turns.",
    )
    figure = sheet("Simulated TTFT between the announcement's figures", lines)
    panels = figure.subplots(1, len(fits), squeeze=False)[0]
    for axes, (published, model, points) in zip(panels, fits, strict=True):
        error = max(abs(found / given - 1) for name, given, found in model.errors if name.startswith("TTFT"))
        axes_of(axes, f"{published.title}, seconds (fit within {error:.1%} of published TTFT)")
        lengths = [found.prefix for found in points]
        for name, colour in (("off", GREY), ("on", BLUE)):
            spreads = [getattr(found, name).ttft["all"] for found in points]
            axes.plot(lengths, [s.mean for s in spreads], color=colour, label=f"reuse {name}", linewidth=2)
            axes.scatter(
                [end.prefix for end in published.ends],
                [getattr(end, f"ttft_{name}") for end in published.ends],
                s=46,
                facecolors="white",
                edgecolors=colour,
                linewidths=2,
                zorder=3,
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens that the prompt begins with", color=MUTED, fontsize=8.5)
        axes.legend(frameon=False, labelcolor=INK, loc="upper left")
    save(figure, path)
