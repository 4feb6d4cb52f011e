"""Quantiles, checked by hand."""

from __future__ import annotations

import pytest

from antiphon_server.quantiles import Spread, even, quantile, spread, weighted


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.51, 3), (0.75, 3), (0.95, 4), (1.0, 4)],
)
def test_quantile_is_the_smallest_value_that_such_a_share_does_not_exceed(share: float, value: int) -> None:
    assert quantile([3, 1, 4, 2], share, None) == value


@pytest.mark.parametrize(
    ("count", "share", "value"),
    [(1, 0.99, 1), (10, 0.5, 5), (20, 0.95, 19), (100, 0.001, 1), (100, 0.99, 99), (101, 0.99, 100)],
)
def test_quantile_is_a_value_that_was_seen(count: int, share: float, value: int) -> None:
    assert quantile(range(count, 0, -1), share, None) == value


@pytest.mark.parametrize("hundredths", range(1, 101))
def test_shares_that_binary_cannot_hold_do_not_shift_a_quantile(hundredths: int) -> None:
    # 0.07 x 100 is more than 7, in binary.
    assert quantile(range(1, 101), hundredths / 100, None) == hundredths


def test_weights_count_as_so_many_values() -> None:
    # 1 x 10, 5 x 30, 2 x 60: sums 10, 40, 100 in order of value 1, 5, 60.
    values = weighted([(60.0, 60.0), (1.0, 10.0), (5.0, 30.0)])
    assert [values.at(share) for share in (0.1, 0.11, 0.4, 0.41, 1.0)] == [1, 5, 5, 60, 60]
    assert [values.below(value) for value in (0.9, 1, 4, 5, 59, 60)] == [0, 0.1, 0.1, 0.4, 0.4, 1.0]


def test_without_weights_all_weigh_the_same() -> None:
    plain, each = even([3.0, 1.0, 2.0]), weighted([(3.0, 7.0), (1.0, 7.0), (2.0, 7.0)])
    for share in (0.0, 0.33, 0.34, 0.66, 0.67, 1.0):
        assert plain.at(share) == each.at(share)
    assert [plain.below(value) for value in (0, 1, 2.5, 3)] == [0, 1 / 3, 2 / 3, 1]


def test_what_weighs_nothing_does_not_count() -> None:
    assert weighted([(1.0, 0.0), (2.0, 1.0)]).at(0.0) == 2


def test_nothing_has_no_quantile() -> None:
    assert quantile([], 0.5, None) is None
    assert quantile([], 0.5, 0.0) == 0.0
    assert weighted([]).below(1.0) == 0.0
    assert spread([]) is None


def test_tenths_that_do_not_add_up_in_binary_do_not_shift_a_quantile() -> None:
    # 0.7 + 0.7 is less than two fifths of five times 0.7, in binary.
    values = weighted((float(i), 0.7) for i in range(5))
    assert [values.at(k / 5) for k in range(1, 6)] == [0, 1, 2, 3, 4]


def test_spread_of_a_hundred_values() -> None:
    assert spread(float(i) for i in range(100, 0, -1)) == Spread(100, 50.5, 50, 95, 99, 100)
