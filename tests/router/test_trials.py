"""Appends are tried again, at a bounded cost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.router.plan.forecast import Growth, forecast
from antiphon_server.router.plan.plan import ALL_PATHS
from antiphon_server.router.plan.rates import Rates, Work
from antiphon_server.router.plan.trials import ADVANCE, DEAREST, EVERY, SHARE, Trial, Trials

TURN = Growth(10_000, 300, known=True)


def test_a_path_that_was_just_measured_is_not_tried() -> None:
    trials, turn = Trials(), Trial(append=1.2, other=1.0)
    for _ in range(EVERY):
        assert not trials.due(turn)
        trials.declined(turn)
    assert trials.due(turn)
    trials.measured()
    assert not trials.due(turn)


def test_a_loss_is_made_up_for_before_the_next_trial() -> None:
    trials, turn = Trials(), Trial(append=2.0, other=1.0)
    tried = []
    for number in range(1000):
        if trials.due(turn):
            trials.begin(turn)
            trials.end(turn, 2.0)
            tried.append(number)
        else:
            trials.declined(turn)
    assert tried[0] == EVERY
    pauses = [later - sooner for sooner, later in pairwise(tried)]
    assert pauses[0] == EVERY + 1  # from the advance
    assert len(pauses) > 20
    assert min(pauses[-15:]) >= 1 / SHARE


def test_a_trial_that_lost_nothing_costs_nothing() -> None:
    trials, turn = Trials(), Trial(append=2.0, other=1.0)
    for _ in range(3):
        for _ in range(EVERY):
            trials.declined(turn)
        assert trials.due(turn)
        trials.begin(turn)
        trials.end(turn, 0.3)


def test_what_would_take_very_long_is_not_tried() -> None:
    trials = Trials()
    for _ in range(100_000):
        trials.declined(Trial(append=50.0, other=1.0))
    assert not trials.due(Trial(append=1.01 + DEAREST, other=1.0))
    assert trials.due(Trial(append=0.99 + DEAREST, other=1.0))


seconds = st.floats(0.01, 10.0)


@given(st.lists(st.tuples(seconds, seconds, seconds), min_size=50, max_size=400))
def test_trials_lose_no_more_than_their_share(turns: list[tuple[float, float, float]]) -> None:
    """Whatever was expected and whatever came: their share, what was advanced, and one trial."""
    trials, lost, saved, advance = Trials(), [0.0], 0.0, 0.0
    for append, other, took in turns:
        turn = Trial(append, other)
        if trials.due(turn):
            assert append > other or turn.loss == 0.0
            trials.begin(turn)
            trials.end(turn, took)
            assert sum(lost) <= SHARE * saved + advance + other + 1e-9
            lost.append(max(0.0, took - other))
        elif append > other:
            advance = advance or ADVANCE * other
            trials.declined(turn)
            saved += other
    assert sum(lost) <= SHARE * saved + advance + 10.0 + max(lost)


def fleet(append: Callable[[int], float]) -> Rates:
    """Prefill computes 10,000 tokens/s and moves 200,000; ``append``: seconds on decode by what is new."""
    rates = Rates()
    for _ in range(3):
        for new, pulled in ((100, 0), (1000, 0), (10_000, 0), (100, 9900), (1000, 9000)):
            work = Work(new, new + pulled, pulled=pulled)
            rates.saw_prefill("p", work, 0.03 + new * 1e-4 + pulled * 5e-6)
            rates.saw_handed_over("d", Work(0, new + pulled, pulled=new), 0.03 + new * 5e-6)
            rates.saw_append("d", Work(new, new + pulled), append(new))
    return rates


def turns_until_appended(rates: Rates, append: Callable[[int], float], most: int) -> tuple[int, float]:
    """Turns until appends are expected to be fastest, and what was lost."""
    trials, lost = rates.trials("d"), 0.0
    for number in range(most):
        expected = forecast(TURN, rates, prefill="p", decode="d", same_prefill=True, streams=0, room=1.0)
        turn = expected.trial(ALL_PATHS)
        assert turn is not None
        if turn.append <= turn.other:
            return number, lost
        if trials.due(turn):
            took = append(TURN.new)
            trials.begin(turn)
            rates.saw_append("d", Work(TURN.new, TURN.total), took)
            trials.end(turn, took)
            lost += max(0.0, took - turn.other)
        else:
            trials.declined(turn)
    return most, lost


def fast(new: int) -> float:
    return 0.02 + new * 1e-4


def test_engine_that_was_measured_while_it_was_slow_gets_appends_again() -> None:
    """Ten times too slow, which nothing but another append would tell."""
    rates = fleet(lambda new: 10 * fast(new))
    before = rates.append("d", Work(TURN.new, TURN.total))
    assert before == pytest.approx(10 * fast(TURN.new), rel=0.2)
    number, lost = turns_until_appended(rates, fast, 200)
    assert number < 100
    assert lost == 0.0


def test_engine_that_is_slow_costs_a_bounded_share() -> None:
    rates = fleet(lambda new: 10 * fast(new))
    other = forecast(TURN, rates, prefill="p", decode="d", same_prefill=True, streams=0, room=1.0).reuse
    assert other is not None
    number, lost = turns_until_appended(rates, lambda new: 10 * fast(new), 2000)
    assert number == 2000
    assert 0 < lost <= (SHARE * number + ADVANCE + 1) * other
