"""An event loop whose time is only counted: it jumps to the next timer as soon as nothing else is left to do.

Hours of leases, probes and think times pass in seconds, and what happens is the same in every run.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

START = 1000.0


class StuckError(AssertionError):
    """Somebody waits for what will never come: no timer runs and nothing is on its way."""


class _Jump(selectors.SelectSelector):
    """Waits for nothing: whatever there is to wait for happens in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("nothing is left that could happen")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio as it is, but for time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Seconds from a start that is the same for all loops."""
        return self._jump.now
