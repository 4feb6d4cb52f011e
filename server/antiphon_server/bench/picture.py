"""How our charts look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK = "#1f2933"
MUTED = "#6b7780"
LINES = "#e3e7ea"
GREY = "#b3bcc4"
BLUE = "#1f6feb"
PALE = "#bcd5fb"


def sheet(title: str, caption: Sequence[str], *, size: tuple[float, float] = (10, 4.6)) -> Figure:
    """A page with a title above and the conditions below. ``size``: inches."""
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1, wspace=0.04)
    figure = Figure(figsize=size, dpi=150, facecolor="white", layout=layout)
    figure.suptitle(title, x=0.012, ha="left", fontsize=14, weight="bold", color=INK)
    figure.supxlabel("\n".join(caption), x=0.012, ha="left", fontsize=8, color=MUTED)
    return figure


def axes_of(axes: Axes, title: str, *, above: float = 6.0) -> None:
    """Plain axes: a title, horizontal lines, no frame. ``above``: points between it and the axes."""
    axes.set_title(title, loc="left", fontsize=10, color=INK, pad=above)
    axes.grid(axis="y", color=LINES, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)
    axes.tick_params(length=0, labelsize=8.5, labelcolor=MUTED)


def logarithmic(axes: Axes) -> None:
    """Values along the bottom on a logarithmic scale, written as they are spoken: 0.1, 0.2, 0.5, 1."""
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def save(figure: Figure, *paths: Path) -> None:
    """Write a picture in the forms that the paths' endings name; their folders are made."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # once is enough: it takes longer than writing
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format=path.suffix.removeprefix(".") or "png")
