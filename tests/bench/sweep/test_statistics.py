from __future__ import annotations

import pytest

from antiphon_server.bench.sweep.statistics import quartiles, ratio


def test_quartiles_stand_around_the_median() -> None:
    found = quartiles([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found.median, found.low, found.high, found.n) == (3.0, 2.0, 4.0, 5)
    between = quartiles([4.0, 1.0, 3.0, 2.0])
    assert (between.median, between.low, between.high) == (2.5, 1.75, 3.25)


def test_quartiles_of_a_single_value_are_that() -> None:
    assert (quartiles([7.0]).low, quartiles([7.0]).high) == (7.0, 7.0)


def test_ratio_pairs_what_was_measured_together() -> None:
    # The machine slowed down tenfold halfway: medians of the sides alone would not tell 2.
    pairs = [(2.0, 1.0), (2.2, 1.1), (20.0, 10.0), (18.0, 9.0)]
    found = ratio(pairs)
    assert (found.value, found.low, found.high, found.n) == (2.0, 2.0, 2.0, 4)


def test_interval_of_a_ratio_grows_with_its_noise() -> None:
    steady = ratio([(1.0 + 0.01 * (i % 3), 1.0) for i in range(12)])
    noisy = ratio([(1.0 + 0.3 * (i % 3), 1.0) for i in range(12)])
    assert steady.high - steady.low < noisy.high - noisy.low
    assert noisy.low <= noisy.value <= noisy.high


def test_interval_is_the_same_each_time() -> None:
    pairs = [(1.0 + 0.1 * i, 1.0) for i in range(7)]
    assert ratio(pairs) == ratio(pairs)


def test_nothing_has_no_median() -> None:
    with pytest.raises(ValueError, match="no values"):
        quartiles([])
    with pytest.raises(ValueError, match="no pairs"):
        ratio([])
