"""How long a replay waits is told before it begins."""

from __future__ import annotations

import pytest

from antiphon_server.bench.replay.forecast import forecast, waiting
from antiphon_server.bench.replay.pace import Pace, pace
from antiphon_server.bench.replay.script import Script, Turn


def script(name: str, *gaps: float) -> Script:
    return Script(name, tuple(Turn(gap, (), 1) for gap in gaps))


SCRIPTS = (script("a", 0.0, 100.0, 300.0), script("b", 0.0, 500.0), script("c", 0.0, 60.0))


@pytest.mark.parametrize(
    ("rhythm", "clients", "arms", "seconds"),
    [
        (Pace(), 1, 1, 960.0),
        (Pace(), 2, 1, 500.0),  # b by itself
        (Pace(), 8, 1, 500.0),
        (Pace(), 1, 3, 3 * 960.0),
        (Pace(), 2, 3, 3 * (500.0 + 60.0)),  # a and b, then c
        (Pace(speed=10.0), 1, 1, 96.0),
        (Pace(longest=50.0), 1, 1, 200.0),
        (Pace(speed=None), 1, 1, 0.0),
    ],
)
def test_gaps_bound_a_replay_from_below(rhythm: Pace, clients: int, arms: int, seconds: float) -> None:
    assert waiting(SCRIPTS, rhythm, clients=clients, arms=arms) == pytest.approx(seconds)


def test_the_bound_the_longest_gap_and_what_shortens_them_are_told() -> None:
    day = (script("a", 0.0, 3.19 * 3600), script("b", 0.0, *(1800.0,) * 38))
    assert forecast(day, pace("real"), clients=1, arms=1) == (
        "gaps alone take at least 22.1 h with one client; the longest, before turn 2 of a, 3.1 h: "
        "--time divides them, --longest-gap bounds each"
    )
    told = forecast(SCRIPTS, pace("10"), clients=2, arms=3)
    assert told is not None
    assert "at least 2.8 min with 2 clients, 3 arms one after the other; " in told
    assert "turn 2 of b, 50 s" in told


def test_what_is_soon_over_is_not_told() -> None:
    assert forecast(SCRIPTS, pace("none"), clients=1, arms=3) is None
    assert forecast(SCRIPTS, pace("100"), clients=1, arms=3) is None
