"""Quantiles, plain and weighted. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def quantile(values: Iterable[float], share: float) -> float | None:
    """Smallest of the values that at least ``share`` of them do not exceed; None without values."""
    return weighted((value, 1.0) for value in values).at(share)


@dataclass(frozen=True, slots=True)
class Weighted:
    """Values in order, and the sum of weights up to each."""

    values: Sequence[float]
    sums: Sequence[float]

    def at(self, share: float) -> float | None:
        """Smallest value whose, and all smaller ones', weights come to ``share`` of all weight."""
        if not self.values:
            return None
        wanted = share * self.sums[-1]
        low, high = 0, len(self.values) - 1
        while low < high:
            middle = (low + high) // 2
            # Sums of floats: a hair below what is wanted is enough.
            if self.sums[middle] >= wanted * (1 - 1e-12):
                high = middle
            else:
                low = middle + 1
        return self.values[low]

    def below(self, value: float) -> float:
        """Share of the weight at this value or smaller ones; 0 without values."""
        place = bisect_right(self.values, value)
        return self.sums[place - 1] / self.sums[-1] if place and self.sums[-1] else 0.0


def weighted(pairs: Iterable[tuple[float, float]]) -> Weighted:
    """``pairs``: value and weight; those without weight do not count."""
    ordered = sorted((value, weight) for value, weight in pairs if weight > 0)
    sums, total = [], 0.0
    for _, weight in ordered:
        total += weight
        sums.append(total)
    return Weighted([value for value, _ in ordered], sums)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one quantity, in its own unit."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float


def spread(values: Sequence[float]) -> Spread | None:
    """None without values."""
    if not values:
        return None
    ordered = weighted((value, 1.0) for value in values)
    p50, p95, p99 = (ordered.at(share) or 0.0 for share in (0.5, 0.95, 0.99))
    return Spread(len(values), sum(values) / len(values), p50, p95, p99)
