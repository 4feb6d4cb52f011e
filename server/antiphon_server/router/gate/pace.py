"""How long turns take, and so how long the next ones have to wait."""

from __future__ import annotations

SOONEST, LATEST = 1.0, 60.0
"""Seconds. OpenAI's and Anthropic's clients take no notice of a ``Retry-After`` of more than a minute."""
_MEMORY = 64
"""Turns that the mean is taken over, about."""


class Pace:
    """Mean duration of the last turns. While the router is full that gives the rate at which they finish: as
    many as are in flight, each that long."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._count = 0

    def finished(self, seconds: float) -> None:
        """One more is done, after so long."""
        self._count = min(self._count + 1, _MEMORY)
        self._mean += (seconds - self._mean) / self._count

    def wait(self, turns: int, in_flight: int) -> float:
        """Seconds until so many of those in flight, or that follow them, have finished: between
        :data:`SOONEST` and :data:`LATEST`, which stands for unknown too."""
        if not self._count or not in_flight:
            return LATEST
        return min(max(turns * self._mean / in_flight, SOONEST), LATEST)
