"""What is worth keeping."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.keep.recompute import Recompute, recompute
from antiphon_server.router.keep.retention import Retention, victims
from antiphon_server.router.store.frontier import Frontier

NOW = 1000.0


def frontier(name: object, tokens: int = 1000, idle: float = 0.0, tenant: str = "t") -> Frontier:
    key = Key(tenant, "m", "", str(name))
    return Frontier(key, b"{}", f"lease-{name}", "http://d", "e", tokens, NOW + 60.0, NOW - idle)


def halves(key: Key, idle: float, horizon: float, now: float) -> float:
    """A chance that halves with every minute idle."""
    return 0.5 ** (idle / 60.0) if horizon > 0 else 0.0


retention = Retention(halves, keep=480.0, least_chance=0.05)


def test_who_is_likelier_to_return_is_worth_more() -> None:
    assert retention.value(frontier("a"), NOW) > retention.value(frontier("b", idle=60.0), NOW)


def test_a_long_prefix_is_worth_more_a_token_than_a_short_one() -> None:
    """Attention makes the last tokens of a long prompt the dearest."""
    assert retention.value(frontier("a", 60_000), NOW) > retention.value(frontier("b", 6_000), NOW)


def test_a_long_idle_prefix_yields_to_many_short_fresh_ones() -> None:
    old, fresh = frontier("old", 60_000, idle=400.0), [frontier(n, 6_000) for n in range(3)]
    assert retention.ranked([*fresh, old], NOW)[0] == old


def test_cost_of_recomputing_is_asked_of_who_measures_it() -> None:
    dear_when_short = dataclasses.replace(retention, saving=lambda tokens: 1.0)
    ranked = dear_when_short.ranked([frontier("short", 100), frontier("long", 10_000)], NOW)
    assert [f.key.conversation for f in ranked] == ["long", "short"]


def test_of_equals_the_longest_idle_goes_first() -> None:
    certain = Retention(lambda *_: 0.5, keep=480.0)
    ranked = certain.ranked([frontier("a", idle=1.0), frontier("b", idle=3.0), frontier("c", idle=2.0)], NOW)
    assert [f.key.conversation for f in ranked] == ["b", "c", "a"]


@pytest.mark.parametrize(("idle", "outstayed"), [(479.0, False), (481.0, True)])
def test_idle_life_is_capped(idle: float, outstayed: bool) -> None:
    assert retention.outstayed(frontier("a", idle=idle), NOW) is outstayed
    assert (retention.value(frontier("a", idle=idle), NOW) == 0.0) is outstayed


def test_hardly_any_chance_is_not_renewed() -> None:
    assert retention.hopeful(frontier("a", idle=240.0), NOW)
    assert not retention.hopeful(frontier("a", idle=300.0), NOW)


frontiers = st.lists(st.tuples(st.integers(0, 50_000), st.floats(0.0, 600.0)), max_size=30)


@given(made=frontiers, excess=st.integers(-10, 400_000))
def test_victims_are_the_least_valuable_and_no_more_than_needed(
    made: list[tuple[int, float]], excess: int
) -> None:
    kept = [frontier(n, tokens, idle) for n, (tokens, idle) in enumerate(made)]
    gone = victims(retention.ranked(kept, NOW), excess)
    stay = [f for f in kept if f not in gone]
    assert all(
        retention.value(victim, NOW) <= retention.value(other, NOW) for victim in gone for other in stay
    )
    freed = sum(f.tokens for f in gone)
    assert freed >= excess or not stay
    if gone:
        assert freed - gone[-1].tokens < excess


def test_default_cost_grows_faster_than_the_tokens() -> None:
    assert recompute(64_000) > 2.5 * recompute(32_000) > 0


def test_measured_cost_is_asked_seldom_and_follows_the_engines() -> None:
    asked: list[int] = []
    now, rate = NOW, 1000.0

    def measured(tokens: int) -> float | None:
        asked.append(tokens)
        return tokens / rate if rate else None

    cost = Recompute(measured, lambda: now)
    assert cost(10_000) == pytest.approx(10.0)
    assert cost(10_001) == pytest.approx(10.0, rel=0.01)
    assert len(asked) == 1
    now, rate = now + 10.0, 500.0
    assert cost(10_000) == pytest.approx(20.0)
    now, rate = now + 10.0, 0.0
    assert cost(10_000) == pytest.approx(recompute(10_000), rel=0.1)
    assert cost(0) == 0.0
