"""Breakers: when they open, for how long, who may try, and what never opens them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.router.fleet.breaker import Breaker, BreakerPolicy, BreakerState, blames_engine

POLICY = BreakerPolicy(failures=3, ratio=0.5, least=10, window=10.0, pause=2.0, longest=12.0, jitter=0.5)


def broken(now: float = 0.0, draw: Callable[[], float] = lambda: 0.0) -> Breaker:
    breaker = Breaker(POLICY, draw)
    for _ in range(POLICY.failures):
        breaker.failed(now)
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(POLICY)
    for _ in range(POLICY.failures - 1):
        breaker.failed(0.0)
        assert breaker.allows(0.0)
    breaker.failed(0.0)
    assert not breaker.allows(0.0)
    assert breaker.state(0.0) is BreakerState.OPEN


def test_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(POLICY)
    for _ in range(4):
        breaker.failed(0.0)
        breaker.failed(0.0)
        breaker.succeeded(0.0)
        breaker.succeeded(0.0)
        breaker.succeeded(0.0)
    assert breaker.allows(0.0)


def test_failures_far_apart_are_not_in_a_row() -> None:
    breaker = Breaker(POLICY)
    for hour in range(10):
        breaker.failed(hour * 3600.0)
        assert breaker.allows(hour * 3600.0)


def test_share_of_failures_opens_it_but_only_with_enough_outcomes() -> None:
    breaker = Breaker(POLICY)
    for step in range(4):
        breaker.failed(step * 0.1)
        breaker.succeeded(step * 0.1)
    assert breaker.allows(1.0)
    breaker.succeeded(1.0)
    breaker.failed(1.0)
    assert not breaker.allows(1.0)


def test_failures_leave_the_window() -> None:
    breaker = Breaker(POLICY)
    for _ in range(4):
        breaker.succeeded(0.0)
        breaker.failed(0.0)
    for _ in range(2):
        breaker.succeeded(11.0)
        breaker.failed(11.0)
    assert breaker.allows(11.0)


def test_after_the_pause_exactly_one_may_try() -> None:
    breaker = broken()
    assert not breaker.allows(1.9)
    assert breaker.allows(2.0)
    assert breaker.state(2.0) is BreakerState.HALF_OPEN
    breaker.claim(2.0)
    assert not breaker.allows(2.1)


def test_trial_that_succeeds_closes_it() -> None:
    breaker = broken()
    breaker.claim(2.0)
    breaker.succeeded(2.5)
    assert breaker.state(2.5) is BreakerState.CLOSED
    breaker.failed(2.6)
    assert breaker.allows(2.6)


def test_trial_that_tells_nothing_is_followed_by_another() -> None:
    breaker = broken()
    breaker.claim(2.0)
    assert not breaker.allows(3.9)
    assert breaker.allows(4.0)


def test_failed_trials_double_the_pause_up_to_the_longest() -> None:
    breaker, now, pauses = broken(), 0.0, []
    for _ in range(5):
        until = breaker.retry_at(now)
        pauses.append(until - now)
        now = until
        breaker.claim(now)
        breaker.failed(now)
    assert pauses == [2.0, 4.0, 8.0, 12.0, 12.0]


def test_flapping_grows_and_long_health_starts_afresh() -> None:
    breaker = broken()
    breaker.succeeded(2.0)
    for _ in range(POLICY.failures):
        breaker.failed(3.0)
    assert breaker.retry_at(3.0) == 7.0
    breaker.succeeded(7.0)
    for _ in range(POLICY.failures):
        breaker.failed(100.0)
    assert breaker.retry_at(100.0) == 102.0


def test_jitter_spreads_the_trials_of_several_routers() -> None:
    assert broken(draw=lambda: 0.0).retry_at(0.0) == 2.0
    assert broken(draw=lambda: 0.5).retry_at(0.0) == 2.5


def test_legs_sent_before_it_opened_do_not_prolong_it() -> None:
    breaker = broken()
    for _ in range(50):
        breaker.failed(1.0)
    assert breaker.retry_at(1.0) == 2.0


def test_success_while_open_asks_for_a_trial_at_once() -> None:
    breaker = broken()
    breaker.succeeded(0.5)
    assert breaker.state(0.5) is BreakerState.HALF_OPEN
    breaker.succeeded(0.6)
    assert breaker.state(0.6) is BreakerState.CLOSED


def test_reset_forgets() -> None:
    breaker = broken()
    breaker.reset()
    breaker.failed(0.0)
    assert breaker.allows(0.0)


@pytest.mark.parametrize(
    ("status", "body", "extra"),
    [
        (400, b"", {}),
        (404, b"", {}),
        (422, b"", {}),
        (429, b"", {}),
        (503, b"", {"retry_after": True}),
        (500, b'{"error":{"message":"This model\'s maximum context length is 65536 tokens"}}', {}),
        (500, b"Prompt length 9000 exceeds the max_model_len 8192.", {}),
    ],
)
def test_client_errors_and_overload_never_count(status: int, body: bytes, extra: Any) -> None:
    assert not blames_engine(status, body, **extra)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_server_errors_count(status: int) -> None:
    assert blames_engine(status, b'{"error":{"message":"EngineCore died"}}')


events = st.lists(st.tuples(st.sampled_from("fsc"), st.floats(0.0, 30.0)), max_size=80)


@given(events, st.floats(0.0, 0.999))
def test_never_shuts_out_for_longer_than_the_longest(told: list[tuple[str, float]], drawn: float) -> None:
    breaker, now = Breaker(POLICY, lambda: drawn), 0.0
    for what, pause in told:
        now += pause
        if what == "f":
            breaker.failed(now)
        elif what == "s":
            breaker.succeeded(now)
        elif breaker.allows(now):
            breaker.claim(now)
        most = POLICY.longest * (1 + POLICY.jitter)
        assert breaker.retry_at(now) - now <= most
        assert breaker.allows(now + most)
        assert breaker.allows(now) == (breaker.retry_at(now) <= now)


@given(st.integers(1, 40), st.floats(2.0, 100.0))
def test_one_trial_at_a_time(callers: int, now: float) -> None:
    breaker, passed = broken(), 0
    for _ in range(callers):
        if breaker.allows(now):
            breaker.claim(now)
            passed += 1
    assert passed == 1
