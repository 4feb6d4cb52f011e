"""What the router would have kept."""

from __future__ import annotations

import pytest

from antiphon_server.advise.fate import Fate, Fates, Keep, fates
from antiphon_server.advise.retention import retention
from antiphon_server.advise.turns import turns_of
from antiphon_server.traces.trace import Call, Trace
from doubles.traffic import growing, timed, traffic


def _fates(trace: Trace, keep: Keep, *, clock: bool) -> Fates:
    return fates(turns_of(trace), keep, clock=clock)


@pytest.mark.parametrize("clock", [False, True])
@pytest.mark.parametrize(("gap", "fate"), [(480.0, Fate.KEPT), (480.5, Fate.IDLE)])
def test_kv_is_gone_once_the_gap_is_longer_than_keep(clock: bool, gap: float, fate: Fate) -> None:
    calls = growing(3, gap=gap)
    trace = traffic(timed(calls) if clock else calls)
    found = _fates(trace, Keep(keep=480.0, least_chance=0.0), clock=clock)
    assert found.fates == (Fate.FIRST, fate, fate)


def test_a_gap_that_is_not_told_is_not_guessed() -> None:
    assert _fates(traffic(growing(2, gap=None)), Keep(), clock=False).fates == (Fate.FIRST, Fate.UNKNOWN)


def test_a_lease_is_not_renewed_where_hardly_anybody_comes_back() -> None:
    # One hundred conversations that were never continued; the last one is, after 400 s.
    ended = [timed(growing(1), begin=float(i)) for i in range(100)]
    late = timed(growing(2, gap=400.0), begin=2000.0)
    trace = traffic(*ended, late)
    assert _fates(trace, Keep(least_chance=0.05), clock=True).fates[-1] is Fate.CHANCE
    assert _fates(trace, Keep(least_chance=0.0), clock=True).fates[-1] is Fate.KEPT


def test_the_budget_keeps_those_that_are_worth_most() -> None:
    # Each holds 20,300 tokens when its first turn ends; both return 60 s later.
    pair = [timed(growing(2, gap=60.0), begin=begin) for begin in (0.0, 1.0)]
    trace = traffic(*pair)
    wide = _fates(trace, Keep(budget=40_600), clock=True)
    assert wide.fates == (Fate.FIRST, Fate.KEPT, Fate.FIRST, Fate.KEPT)
    narrow = _fates(trace, Keep(budget=40_599), clock=True)
    assert narrow.fates == (Fate.FIRST, Fate.EVICTED, Fate.FIRST, Fate.KEPT)
    assert max(step.tokens for step in narrow.pinned) <= 40_600


def test_what_is_larger_than_the_budget_is_not_kept_at_all() -> None:
    alone = traffic(timed(growing(2)))
    assert _fates(alone, Keep(budget=20_300), clock=True).fates[1] is Fate.KEPT
    found = _fates(alone, Keep(budget=20_299), clock=True)
    assert (found.fates[1], found.pinned) == (Fate.EVICTED, ())


def test_pinned_tokens_are_those_of_conversations_at_rest() -> None:
    # 20,000 + 300 from 5 s on, until the next turn at 15 s; then 20,800 + 300 from 20 s on, for 480 s.
    found = _fates(traffic(timed(growing(2))), Keep(), clock=True).pinned
    assert [(step.at, step.tokens) for step in found] == [
        (5.0, 20_300),
        (15.0, 0),
        (20.0, 21_100),
        (500.0, 0),
    ]


def test_turns_that_meet_in_one_moment_find_what_was_kept() -> None:
    calls = (Call(1000, 10, at=0.0, seconds=2.0), Call(1200, 10, at=2.0, seconds=0.0, shared=1010))
    found = _fates(traffic((*calls, Call(1400, 10, at=2.0, shared=1210))), Keep(), clock=True)
    assert found.fates == (Fate.FIRST, Fate.KEPT, Fate.KEPT)


@pytest.mark.parametrize("clock", [False, True])
def test_what_is_kept_goes_to_one_of_several_turns_at_once(clock: bool) -> None:
    first = Call(1000, 100, at=0.0, seconds=2.0)
    # Three branches of 10 s: the first takes what the first turn left, and nothing is there for the others.
    branches = [Call(1200, 100, at=at, seconds=10.0, shared=1100) for at in (5.0, 6.0, 7.0)]
    # The one at 15.5 s may go on from the first branch, which ended at 15 s; the next has nothing again: the
    # second ended at 16 s, which is one moment with 15.5 s, and the third at 17 s, after it began.
    later = [Call(1400, 100, at=at, seconds=10.0, shared=1300) for at in (15.5, 15.9, 20.0)]
    found = _fates(traffic((first, *branches, *later)), Keep(), clock=clock).fates
    busy, kept = Fate.BUSY, Fate.KEPT
    assert found == (Fate.FIRST, kept, busy, busy, kept, busy, kept)


def test_turns_that_find_nothing_as_others_run_count_as_gone_and_not_as_returns() -> None:
    branches = [Call(1200, 100, at=at, seconds=10.0, shared=1100) for at in (5.0, 6.0)]
    turns = turns_of(traffic((Call(1000, 100, at=0.0, seconds=2.0), *branches)))
    held = retention(turns, fates(turns, Keep(), clock=False), 480.0)
    assert (held.kept, held.busy, held.gone, held.known) == (0.5, 0.5, 0.5, 1.0)
    assert set(dict(held.gaps).values()) == {3.0}


def test_what_each_keep_finds_and_pins_by_hand() -> None:
    trace = traffic(
        (
            Call(1000, 100, seconds=10.0),
            Call(1500, 100, gap=20.0, seconds=10.0, shared=1100),
            Call(4000, 100, gap=200.0, seconds=10.0, shared=1600),
        )
    )
    turns = turns_of(trace)
    held = retention(turns, fates(turns, Keep(keep=60.0), clock=False), 60.0)
    # Gaps of 20 s and 200 s; 1,100 and 1,600 tokens come back after them.
    assert dict(held.gaps) == {0.5: 20.0, 0.75: 200.0, 0.9: 200.0, 0.95: 200.0, 0.99: 200.0}
    assert dict(held.gaps_by_tokens)[0.5] == 200.0
    assert held.kept == pytest.approx(1100 / 2700)
    assert held.idle == pytest.approx(1600 / 2700)
    by = {option.keep: option for option in held.options}
    assert by[60.0].found == pytest.approx(1100 / 2700)
    assert by[240.0].found == 1.0
    # It is active for three times 10 s and 20 + 200 s. With 60 s the turns pin for 20, 60 and 60 s.
    assert by[60.0].pinned == pytest.approx((1100 * 20 + 1600 * 60 + 4100 * 60) / 250)
    assert by[60.0].held == pytest.approx((20 + 60 + 60) / 3)
    assert by[240.0].pinned == pytest.approx((1100 * 20 + 1600 * 200 + 4100 * 240) / 250)


def test_a_conversation_is_active_for_five_minutes_after_a_turn() -> None:
    turns = turns_of(traffic(growing(2, gap=400.0)))
    held = retention(turns, fates(turns, Keep(), clock=False), 480.0)
    # Two turns of 5 s, and 300 of the 400 s between them.
    assert held.chosen.pinned == pytest.approx((20_300 * 400 + 21_100 * 480) / 310)


def test_conversations_at_once_by_hand() -> None:
    # In flight or waited for: 0..20 s and 10..30 s. 10 s one, 10 s two, 10 s one.
    trace = traffic(timed(growing(2), begin=0.0), timed(growing(2), begin=10.0))
    turns = turns_of(trace)
    held = retention(turns, fates(turns, Keep(), clock=True), 480.0)
    assert held.active == pytest.approx((10 + 2 * 10 + 10) / 30)
    assert held.most == 2
