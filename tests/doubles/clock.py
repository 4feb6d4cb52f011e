"""A clock for what is told the time."""

from __future__ import annotations


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self, time: float = 1000.0) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time
