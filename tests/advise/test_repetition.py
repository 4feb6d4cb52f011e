"""Question 1, against tokens counted by hand."""

from __future__ import annotations

import pytest

from antiphon_server.advise.repetition import repetition
from antiphon_server.advise.turns import has_clock, turns_of
from antiphon_server.traces.trace import Call
from doubles.traffic import growing, traffic

TWO = traffic(
    (
        Call(1000, 100, seconds=1.0),
        Call(1300, 100, gap=2.0, shared=1100),  # 200 new
        Call(2000, 100, gap=4.0, shared=1400),  # 600 new
    ),
    (
        Call(500, 50),
        Call(800, 50, gap=1.0, shared=300),  # 550 were held: 250 lost
    ),
)


def test_tokens_are_counted_as_by_hand() -> None:
    found = repetition(turns_of(TWO))
    assert (found.calls, found.conversations, found.single, found.returning) == (5, 2, 0, 3)
    assert found.tokens == 1000 + 1300 + 2000 + 500 + 800
    assert found.returning_tokens == 1300 + 2000 + 800
    assert found.repeated == 1100 + 1400 + 300
    assert found.share == pytest.approx(2800 / 4100)
    assert found.lost == 250
    assert found.rewritten == 1
    assert found.answers == 100 + 100
    # A warm prefill computes 200 + 600 + 500 new tokens and the two answers.
    assert found.answer_share == pytest.approx(200 / 1500)
    # Of the shares 0.846, 0.7 and 0.375.
    assert found.typical == pytest.approx(1400 / 2000)
    assert (found.start, found.end) == (500, 800)


def test_growth_is_told_by_turn() -> None:
    first, second, later = repetition(turns_of(TWO)).stages
    assert (first.first, first.turns, first.share) == (1, 2, 0.0)
    assert (second.first, second.turns, second.prompt) == (2, 2, 800)
    assert second.share == pytest.approx((1100 + 300) / (1300 + 800))
    assert (later.first, later.last, later.turns, later.prompt) == (3, 5, 1, 2000)


def test_a_little_that_is_lost_is_no_rewriting() -> None:
    # 20,300 tokens are held when the second turn comes; a tenth of that is 2,030.
    assert repetition(turns_of(traffic(growing(2, lost=2030)))).rewritten == 0
    assert repetition(turns_of(traffic(growing(2, lost=2031)))).rewritten == 1


def test_gaps_are_never_longer_than_the_clock_allows() -> None:
    told = traffic((Call(10, 1, at=0.0, seconds=2.0), Call(10, 1, at=5.0, gap=60.0, shared=9)))
    assert [turn.gap for turn in turns_of(told)] == [None, 3.0]


def test_a_clock_tells_what_ran_at_once_unless_every_conversation_begins_at_zero() -> None:
    one, other = (Call(10, 1, at=0.0),), (Call(10, 1, at=3.0),)

    def clock(*conversations: tuple[Call, ...], **more: bool) -> bool:
        told = traffic(*conversations, **more)
        return has_clock(told, turns_of(told))

    assert clock(one)
    assert clock(one, other)
    assert not clock(one, one)
    assert not clock(one, (Call(10, 1),))
    # A sub-agent begins later than its session; that says nothing of when other sessions ran.
    assert not clock(one, other, one_clock=False)
