"""Rates are learnt from legs."""

from __future__ import annotations

import contextlib
import random

import pytest

from antiphon_server.router.plan.rates import Fit, Rates, Work
from doubles.clock import Clock


def leg(work: Work, *, fixed: float = 0.03, token: float = 1e-4, attention: float = 2e-9) -> float:
    """What an engine takes."""
    past = work.context - work.new / 2
    return fixed + (work.new + work.ahead) * token + work.new * past * attention + work.pulled * 1e-6


def test_nothing_is_expected_before_two_legs() -> None:
    rates = Rates()
    assert rates.prefill("p", Work(10, 10)) is None
    rates.saw_prefill("p", Work(10, 10), 1.0)
    assert rates.prefill("p", Work(10, 10)) is None
    rates.saw_prefill("p", Work(1000, 1000), 2.0)
    assert rates.prefill("p", Work(10, 10)) == pytest.approx(1.0, rel=0.1)


def test_learns_fixed_cost_tokens_attention_and_transfer() -> None:
    rates, draw = Rates(), random.Random(1)
    for _ in range(200):
        context = draw.randrange(200, 60_000)
        pulled = draw.choice([0, int(context * draw.random())])
        work = Work(context - pulled, context, pulled=pulled, ahead=draw.choice([0, 5000]))
        rates.saw_prefill("p", work, leg(work) * draw.uniform(0.9, 1.1))
    for work in (
        Work(300, 300),
        Work(50_000, 50_000),
        Work(500, 50_000, pulled=49_500),
        Work(9, 9, ahead=9000),
    ):
        assert rates.prefill("p", work) == pytest.approx(leg(work), rel=0.25)


def test_follows_an_engine_that_becomes_slower() -> None:
    fit = Fit(1)
    for seconds in [1.0] * 50 + [3.0] * 100:
        fit.observe([1.0], seconds)
    assert fit.seconds([1.0]) == pytest.approx(3.0, rel=0.2)


def test_a_pause_of_the_engine_is_not_taken_for_its_rate() -> None:
    fit = Fit(1)
    for seconds in [1.0] * 20 + [500.0] + [1.0] * 3:
        fit.observe([1.0], seconds)
    assert fit.seconds([1.0]) < 1.5


def test_expectations_grow_with_the_leg() -> None:
    rates, draw = Rates(), random.Random(2)
    for _ in range(50):
        work = Work(draw.randrange(1, 9000), 9000, streams=draw.randrange(5))
        rates.saw_append("d", work, draw.uniform(0.01, 3.0))
    seconds = [rates.append("d", Work(new, 9000)) or 0.0 for new in (1, 100, 1000, 9000)]
    assert seconds == sorted(seconds)


def test_ahead_counts_what_is_being_computed() -> None:
    rates = Rates()
    with rates.computing("p", 100):
        with contextlib.suppress(RuntimeError), rates.computing("p", 50):
            assert rates.ahead("p") == 150
            raise RuntimeError
        assert rates.ahead("p") == 100
    assert rates.ahead("p") == 0


def known(clock: Clock) -> Rates:
    """A prefill and a decode engine that compute 1000 tokens/s, and take 20 ms besides."""
    rates = Rates(clock)
    for new in (10, 100, 1000, 5000) * 3:
        for saw, name in ((rates.saw_prefill, "p"), (rates.saw_append, "d")):
            saw(name, Work(new, new + 5000), 0.02 + new * 1e-3)
    return rates


def test_what_is_ahead_shrinks_while_it_is_computed() -> None:
    clock = Clock(0.0)
    rates = known(clock)
    with rates.computing("p", 5000), rates.computing("p", 200):
        assert rates.ahead("p") == 5200
        clock.time = 2.0
        assert rates.ahead("p") == pytest.approx(3200, rel=0.05)
        clock.time = 60.0  # never more than the first of them
        assert rates.ahead("p") == 200
        assert rates.wait("p") == pytest.approx(0.2, rel=0.05)


def test_own_time_of_a_leg_begins_when_those_before_it_are_done() -> None:
    clock = Clock(0.0)
    rates = known(clock)
    first = contextlib.ExitStack()
    first.enter_context(rates.computing("p", 5000))
    with rates.computing("p", 200) as spell:
        assert spell.waited
        assert rates.own("p", spell) is None
        clock.time = 5.0
        first.close()
        clock.time = 5.2
        assert rates.own("p", spell) == pytest.approx(0.2)


def test_nothing_is_learnt_from_a_leg_that_was_overtaken() -> None:
    rates = known(Clock(0.0))
    with rates.computing("p", 200) as pulling:
        with rates.computing("p", 5000):
            pass
        assert rates.own("p", pulling) is None


def test_leg_that_shared_a_step_with_the_one_before_is_not_taken_for_fast() -> None:
    rates = known(Clock(0.0))
    before = rates.prefill("p", Work(100, 5000))
    for _ in range(20):
        rates.saw_prefill("p", Work(100, 5000), 0.001, waited=True)
    assert rates.prefill("p", Work(100, 5000)) == before


def test_append_costs_others_what_is_new_of_it_alone() -> None:
    rates = known(Clock(0.0))
    assert rates.burden("d", Work(300, 6000, ahead=4000, streams=3)) == pytest.approx(0.3, rel=0.05)
    assert rates.burden("unknown", Work(300, 6000)) is None


def test_tokens_of_a_byte_are_learnt() -> None:
    rates = Rates()
    for _ in range(60):
        rates.saw_prompt(500, 1000)
    assert rates.per_byte == pytest.approx(0.5, rel=0.01)


def test_new_life_of_an_engine_is_measured_anew() -> None:
    rates = Rates()
    for new in (10, 1000):
        rates.saw_prefill("p", Work(new, new), 1.0)
    rates.forget("p")
    assert rates.prefill("p", Work(10, 10)) is None


def test_figures_are_tokens_a_second() -> None:
    rates = Rates()
    for new in (100, 1000, 10_000):
        rates.saw_prefill("p", Work(new, new), new * 1e-3)
    figures = {(worker, what): rate for worker, what, rate in rates.figures()}
    assert figures["p", "prefill"] == pytest.approx(1000, rel=0.1)


def test_small_pulls_do_not_tell_of_large_ones() -> None:
    rates, draw = Rates(), random.Random(3)
    for _ in range(60):
        pulled = draw.choice([0, 0, 0, 16, 32])
        new = draw.randrange(50, 5000)
        work = Work(new, new + 3000, pulled=pulled)
        rates.saw_prefill("p", work, (0.02 + new * 1e-3 + (0.1 if pulled else 0.0)) * draw.uniform(0.8, 1.2))
    assert (rates.prefill("p", Work(100, 10_100, pulled=10_000)) or 0.0) < 3.0


def test_reading_a_long_prompt_is_not_taken_for_attention() -> None:
    """Else what is short on a long context, which is all that is appended at first, tells wrongly of what is
    longer."""

    def append(work: Work) -> float:
        return 0.02 + work.new * 4e-5 + work.context * 1.3e-6

    rates, draw = Rates(), random.Random(4)
    for _ in range(60):
        work = Work(draw.randrange(50, 800), draw.randrange(15_000, 100_000))
        rates.saw_append("d", work, append(work) * draw.uniform(0.95, 1.05))
    for work in (Work(8000, 100_000), Work(4000, 20_000), Work(300, 150_000)):
        assert rates.append("d", work) == pytest.approx(append(work), rel=0.25)
    long = Work(8000, 100_000, streams=4)
    assert rates.burden("d", long) == pytest.approx(0.32, rel=0.25)


def test_pulls_that_were_slow_once_are_forgotten_without_pulling() -> None:
    """What speaks against reuse fades with the prefill engine's other legs."""
    rates, draw = Rates(), random.Random(5)
    for slow in range(6):
        work = Work(100, 2000, pulled=1900)
        rates.saw_prefill("p", work, 0.02 + 100 * 1e-4 + 10 * 1900 * 1e-5 + slow * 1e-3)
    for _ in range(300):
        work = Work(new := draw.randrange(500, 20_000), new)
        rates.saw_prefill("p", work, leg(work) * draw.uniform(0.9, 1.1))
    pulling = rates.prefill("p", Work(100, 10_000, pulled=9900))
    computing = rates.prefill("p", Work(10_000, 10_000))
    assert pulling is not None
    assert computing is not None
    assert pulling < 0.5 * computing
