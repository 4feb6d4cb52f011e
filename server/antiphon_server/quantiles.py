"""Quantiles, plain and weighted, and a distribution in a few of them. Pure.

A quantile, here and everywhere, is the smallest of the values that at least such a share of them, by weight,
does not exceed: one that was seen, whatever the share. ``p50`` is one, and so are the medians that
``antiphon advise`` tells: of an even number the lower of the middle two. Another median told by itself, or
with its quartiles, is :mod:`statistics`' own: the mean of these two.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Empty = TypeVar("Empty")
_ROUNDING = 1e-12
"""Sums of floats: so little less than what is wanted is enough."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """Values in order, and the sum of weights up to each."""

    values: Sequence[float]
    sums: Sequence[float]

    def at(self, share: float) -> float | None:
        """The quantile; None without values."""
        if not self.values:
            return None
        return self.values[bisect_left(self.sums, share * self.sums[-1] * (1 - _ROUNDING))]

    def below(self, value: float) -> float:
        """Share of the weight at this value or smaller ones; 0 without values."""
        place = bisect_right(self.values, value)
        return self.sums[place - 1] / self.sums[-1] if place and self.sums[-1] else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one quantity, in its own unit: ``count`` values, ``most`` the largest."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    most: float


def weighted(pairs: Iterable[tuple[float, float]]) -> Weighted:
    """``pairs``: value and weight; those without weight do not count."""
    ordered = sorted((value, weight) for value, weight in pairs if weight > 0)
    sums, total = [], 0.0
    for _, weight in ordered:
        total += weight
        sums.append(total)
    return Weighted([value for value, _ in ordered], sums)


def even(values: Iterable[float]) -> Weighted:
    """Each weighs 1."""
    ordered = sorted(values)
    return Weighted(ordered, range(1, len(ordered) + 1))


def quantile(values: Iterable[float], share: float, empty: Empty) -> float | Empty:
    """``empty``: of no values."""
    found = even(values).at(share)
    return empty if found is None else found


def spread(values: Iterable[float]) -> Spread | None:
    """None without values."""
    ranked = even(values)
    count = len(ranked.values)
    if not count:
        return None
    p50, p95, p99 = (ranked.at(share) or 0.0 for share in (0.5, 0.95, 0.99))
    return Spread(count, math.fsum(ranked.values) / count, p50, p95, p99, ranked.values[-1])
