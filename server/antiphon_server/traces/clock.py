"""When calls were: which times of a log are of its clock, and what order they give."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low

_FAR = 366 * 86400.0
"""Seconds from the rest's times from which on one is a fault: 0, or a number that is something else."""
_SINCE_1970 = 1e8
"""Seconds; times below count from something else."""


def plausible(times: Sequence[float | None]) -> list[float | None]:
    """None in the place of those far from most of the others."""
    known = [at for at in times if at is not None]
    if not known:
        return list(times)
    middle = median_low(known)
    return [at if at is not None and abs(at - middle) <= _FAR else None for at in times]


def far_note(far: int, what: str) -> str:
    return f"{far} {what} have a time more than a year from most others' and count as without"


def is_relative(times: Sequence[float | None]) -> bool:
    """Whether these count from when something began, which tells nothing about their unit."""
    known = [at for at in times if at is not None]
    return bool(known) and max(known) < _SINCE_1970


def order(times: Sequence[float | None]) -> list[int]:
    """Indices in order of time. One without is beside that which was logged before it; where times mostly
    fall, the newest were logged first."""
    known = [at for at in times if at is not None]
    falls = sum((after < before) - (after > before) for before, after in pairwise(known))
    logged = list(range(len(times)))
    if falls > 0:
        logged.reverse()
    beside = next((times[i] for i in logged if times[i] is not None), None) or 0.0
    keys: dict[int, float] = {}
    for i in logged:
        at = times[i]
        beside = keys[i] = beside if at is None else at
    return sorted(logged, key=keys.__getitem__)
