"""A distribution in a few figures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Of ``count`` values."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    most: float


def spread(values: Iterable[float]) -> Spread | None:
    """None of none. A quantile is the value that this share of all does not exceed."""
    ranked = sorted(values)
    if not ranked:
        return None

    def quantile(share: float) -> float:
        return ranked[max(0, math.ceil(share * len(ranked)) - 1)]

    mean = math.fsum(ranked) / len(ranked)
    return Spread(len(ranked), mean, quantile(0.5), quantile(0.95), quantile(0.99), ranked[-1])
