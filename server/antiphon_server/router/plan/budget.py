"""How much append may cost a decode engine's other streams. Pure: the clock is passed in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AppendBudget:
    """A bucket of compute seconds of one decode engine. New tokens are computed in the same steps that give
    the other streams their next token, so each second spent on them is a second that those wait.

    ``slowdown``: factor by which inter-token latency may grow on average; appends then get the share
    ``1 - 1/slowdown`` of the engine's time. ``stall``: seconds that may be spent at once.
    """

    slowdown: float
    stall: float
    _level: float = 0.0
    _at: float | None = None

    @property
    def share(self) -> float:
        """Seconds a second."""
        return 1.0 - 1.0 / self.slowdown

    def room(self, now: float) -> float:
        """Seconds that an append may cost others now."""
        self._refill(now)
        return max(0.0, self._level)

    def spend(self, seconds: float, now: float) -> None:
        """Take it. Goes into debt where nobody else was there when the append was decided."""
        self._refill(now)
        self._level -= seconds

    def _refill(self, now: float) -> None:
        if self._at is None:
            self._level = self.stall
        else:
            self._level = min(self.stall, self._level + max(0.0, now - self._at) * self.share)
        self._at = now
