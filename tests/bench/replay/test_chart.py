"""What the picture of a replay shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from antiphon_server.bench.replay.chart import _by_class, _spread
from antiphon_server.bench.replay.record import Served, rows_of

ARMS = ("off", "auto")


def _replay(slowest: float) -> Any:
    """Twenty turns a class and arm, the last one of ``auto`` so slow."""
    turns = [
        Served("c", turn, arm, 0.0, 0.0, ttft, ttft + 1, 100, 10)
        for turn in (1, 2)
        for arm in ARMS
        for ttft in [0.1] * 18 + [slowest if arm == "auto" else 0.2] * 2
    ]
    return SimpleNamespace(arms=ARMS, turns=turns, rows=rows_of(ARMS, turns, {}))


def _axes() -> Axes:
    return Figure().subplots()


@pytest.mark.parametrize(("slowest", "written"), [(0.3, []), (7.25, ["7.25 →", "7.25 →"])])
def test_whiskers_that_leave_the_picture_are_marked_with_their_value(
    slowest: float, written: list[str]
) -> None:
    axes = _axes()
    _by_class(axes, _replay(slowest), dict.fromkeys(ARMS, "#000000"))
    assert [text.get_text() for text in axes.texts] == written
    assert axes.get_ylim()[1] == pytest.approx(0.315 if slowest == 0.3 else 0.4)


def test_seconds_are_written_out_on_a_logarithmic_axis() -> None:
    axes = _axes()
    _spread(axes, _replay(7.25), dict.fromkeys(ARMS, "#000000"))
    axes.figure.canvas.draw()
    labels = {label.get_text() for label in axes.get_xticklabels()}
    assert {"0.1", "0.2", "0.5", "1", "2", "5"} <= labels
