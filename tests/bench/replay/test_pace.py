from __future__ import annotations

import pytest

from antiphon_server.bench.replay.pace import pace
from antiphon_server.bench.replay.words import words


@pytest.mark.parametrize(("text", "seconds"), [("real", 30.0), ("none", 0.0), ("10", 3.0), ("0.5", 60.0)])
def test_gaps_pass_in_real_time_or_faster_or_not_at_all(text: str, seconds: float) -> None:
    assert pace(text).seconds(30.0) == seconds


def test_a_long_gap_counts_for_as_much_as_it_may_before_it_is_divided() -> None:
    assert pace("10", longest=50.0).seconds(600.0) == 5.0


def test_gaps_that_are_not_told_are_what_was_said() -> None:
    rhythm = pace("2", unknown=8.0)
    assert rhythm.seconds(rhythm.known(None)) == 4.0
    assert rhythm.known(-3.0) == 0.0


@pytest.mark.parametrize("text", ["fast", "0", "-1", "inf", "nan", ""])
def test_what_is_no_pace_is_a_fault(text: str) -> None:
    with pytest.raises(ValueError, match=f"--time '{text}' is no pace"):
        pace(text)


def test_words_are_the_same_for_the_same_name_and_of_any_length() -> None:
    assert words("a", 1, 500) == words("a", 1, 500)
    assert words("a", 1, 500)[:90] == words("a", 1, 90)
    assert len({words("a", n, 24) for n in range(500)} | {words("b", n, 24) for n in range(500)}) == 1000
    assert words("a", 1, 0) == ""
    assert [len(words("a", 1, n)) for n in (1, 7, 4000)] == [1, 7, 4000]
