"""The chance that a conversation returns, learnt from those that did and those that did not."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.keep.returns import Returns, prior

KEEP = 480.0


def key(name: object) -> Key:
    return Key("tenant", "model", "", str(name))


STRANGER = key("never seen")


def observe(returns: Returns, gaps: list[float], start: float = 0.0, name: str = "c") -> float:
    """One conversation each: a turn, a gap, a turn, and its end. Returns when the last one is over."""
    end = start
    for index, gap in enumerate(gaps):
        returns.ended(key(f"{name}{index}"), start)
        returns.began(key(f"{name}{index}"), start + gap)
        end = max(end, start + gap)
    return end


def test_prior_thinks_that_a_fresh_conversation_returns_and_an_idle_one_less_and_less() -> None:
    returns = Returns(10)
    chances = [returns.chance(STRANGER, idle, KEEP - idle, 0.0) for idle in (0.0, 30.0, 120.0, 300.0, 470.0)]
    assert 0.5 < chances[0] < 0.8
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < 0.01
    assert chances[0] == pytest.approx(1.0 - prior(KEEP), abs=0.02)


def test_no_time_left_is_no_chance() -> None:
    assert Returns(10).chance(STRANGER, 500.0, -20.0, 0.0) == 0.0


def test_gaps_of_others_are_learnt() -> None:
    returns = Returns(10_000)
    now = observe(returns, [10.0] * 500)
    assert returns.chance(STRANGER, 0.0, 20.0, now) > 0.95
    assert returns.chance(STRANGER, 0.0, 2.0, now) < 0.1


@pytest.mark.parametrize("fate", ["still idle", "closed", "forgotten"])
def test_conversations_that_never_return_count_against_a_return(fate: str) -> None:
    """Else the few that return, and are seen at once, would make it look certain."""
    returns = Returns(600 if fate == "forgotten" else 10_000)
    now = observe(returns, [10.0] * 100, name="returned")
    for index in range(500):
        returns.ended(key(f"gone{index}"), now)
    now += 300.0
    if fate == "closed":
        for index in range(500):
            returns.closed(key(f"gone{index}"), now)
    elif fate == "forgotten":
        for index in range(600):
            returns.ended(key(f"later{index}"), now)
        now += 1.0
        for index in range(600):
            returns.closed(key(f"later{index}"), now)
    chance = returns.chance(STRANGER, 5.0, KEEP, now)
    assert chance == pytest.approx(100 / 600, abs=0.08)


def test_closed_conversation_says_nothing_about_later() -> None:
    """It was watched for a second only: a return after ten stays as likely as those that stayed tell."""
    returns = Returns(10_000)
    now = observe(returns, [10.0] * 200, name="returned")
    for index in range(2000):
        returns.ended(key(f"short{index}"), now)
        returns.closed(key(f"short{index}"), now + 1.0)
    assert returns.chance(STRANGER, 2.0, 30.0, now + 2.0) > 0.9


def test_estimate_comes_close_to_the_truth() -> None:
    """Four in ten never return, the others after 30 s on average."""
    draw = random.Random(7)
    returns, now, events = Returns(100_000), 0.0, []
    for index in range(4000):
        now += 1.0
        events.append((now, 0, index))
        if draw.random() >= 0.4:
            events.append((now + draw.expovariate(1 / 30.0), 1, index))
    for at, kind, index in sorted(event for event in events if event[0] <= now):
        (returns.ended if kind == 0 else returns.began)(key(index), at)

    def still(idle: float) -> float:
        return 0.4 + 0.6 * math.exp(-idle / 30.0)

    for idle, horizon in ((0.0, 30.0), (0.0, 480.0), (30.0, 60.0), (90.0, 390.0)):
        truth = 1.0 - still(idle + horizon) / still(idle)
        assert returns.chance(STRANGER, idle, horizon, now) == pytest.approx(truth, abs=0.06)


def test_old_observations_fade() -> None:
    returns = Returns(10_000, half_life=600.0)
    observe(returns, [5.0] * 300, name="quick")
    assert returns.chance(STRANGER, 0.0, 10.0, 10.0) > 0.9
    observe(returns, [200.0] * 300, start=6000.0, name="slow")
    assert returns.chance(STRANGER, 0.0, 10.0, 6300.0) < 0.1


def test_observations_of_days_do_not_overflow() -> None:
    returns = Returns(100, half_life=60.0)
    for day in range(40):
        now = observe(returns, [10.0] * 5, start=day * 86_400.0)
        assert 0.0 < returns.chance(STRANGER, 0.0, 60.0, now) < 1.0


def test_regular_conversation_is_waited_for_while_the_crowd_is_gone() -> None:
    returns, now, regular = Returns(10_000), 0.0, key("regular")
    for _ in range(12):
        returns.ended(regular, now)
        now += 120.0
        returns.began(regular, now)
    for _ in range(4):
        now = observe(returns, [3.0] * 500, start=now, name="quick")
    for index in range(200):
        returns.ended(key(f"gone{index}"), now)
    now += 300.0
    assert returns.chance(regular, 90.0, 60.0, now) > 2 * returns.chance(STRANGER, 90.0, 60.0, now)


def test_regular_conversation_that_is_overdue_is_given_up() -> None:
    returns, now, regular = Returns(10_000), 0.0, key("regular")
    for _ in range(12):
        returns.ended(regular, now)
        now += 10.0
        returns.began(regular, now)
    fresh = returns.chance(regular, 0.0, KEEP, now)
    overdue = returns.chance(regular, 120.0, KEEP - 120.0, now)
    assert fresh > 0.85
    assert overdue < 0.25


def test_memory_is_bounded() -> None:
    returns = Returns(50)
    for index in range(5000):
        returns.ended(key(index), float(index) * 100.0)
        returns.chance(STRANGER, 0.0, KEEP, float(index) * 100.0)
    assert len(returns) == 50
    assert sum(returns._slots.values()) <= 50


steps = st.lists(
    st.tuples(st.sampled_from(["began", "ended", "closed"]), st.integers(0, 5), st.floats(0.0, 40_000.0)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps=steps, idle=st.floats(0.0, 2000.0), horizon=st.floats(0.0, 2000.0))
def test_chance_is_one_and_grows_with_the_horizon(
    steps: list[tuple[str, int, float]], idle: float, horizon: float
) -> None:
    returns, now = Returns(4), 0.0
    for what, name, pause in steps:
        now += pause
        getattr(returns, what)(key(name), now)
        for who in (STRANGER, key(name)):
            near = returns.chance(who, idle, horizon, now)
            far = returns.chance(who, idle, horizon + 60.0, now)
            assert 0.0 <= near <= far + 1e-12 <= 1.0 + 1e-12
    idlers = [rhythm for rhythm in returns._known.values() if rhythm.end is not None]
    assert 0 <= sum(returns._slots.values()) <= len(idlers)
    assert all(count > 0 for count in returns._slots.values())
