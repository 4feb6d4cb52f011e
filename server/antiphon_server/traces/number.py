"""Numbers as logs have them: also as text, never trusted."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> float | None:
    """A finite number of at least 0, or None."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and found >= 0 else None


def count(value: Any) -> int | None:
    """A whole number of at least 0 that tokens may count, or None."""
    found = number(value)
    return int(found) if found is not None and found < 1e12 else None
