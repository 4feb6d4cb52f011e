"""Shares, for people to read."""

from __future__ import annotations

import math

_NEARLY, _ALL = 0.995, 1 - 1e-9


def percent(share: float) -> str:
    """In whole percent; 100 % only where it is all."""
    if _NEARLY <= share < _ALL:
        return f"{math.floor(share * 1000) / 10:.1f}%"
    return f"{share:.0%}"
