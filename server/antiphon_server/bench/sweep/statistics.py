"""Medians with their quartiles, and ratios of pairs with their uncertainty. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
SEED = 1
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Of ``n`` values: median and quartiles. Interpolated, as there may be few."""

    median: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of the ratios of ``n`` pairs, and the 95 % interval that resampling the pairs gives it."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.2f} (95 %: {self.low:.2f} to {self.high:.2f}, n {self.n})"


def quartiles(values: Iterable[float]) -> Quartiles:
    """Raises ``ValueError`` where there are no values."""
    found = sorted(values)
    if not found:
        raise ValueError("no values")
    if len(found) == 1:
        return Quartiles(found[0], found[0], found[0], 1)
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    return Quartiles(middle, low, high, len(found))


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """First over second of each pair. Pairs were measured close together, so what slows both cancels.

    Raises:
        ValueError: there are no pairs.
    """
    found = [first / second for first, second in pairs]
    if not found:
        raise ValueError("no pairs")
    chance = random.Random(SEED)
    medians = sorted(statistics.median(chance.choices(found, k=len(found))) for _ in range(RESAMPLES))
    # Places as far from one end as from the other.
    low, high = (medians[round(share * (RESAMPLES - 1))] for share in (_LOW, _HIGH))
    return Ratio(statistics.median(found), low, high, len(found))
