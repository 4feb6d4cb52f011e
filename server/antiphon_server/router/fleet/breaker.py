"""A breaker: keeps legs away from what failed them, for a while, and then lets one of them try.

Pure: the clock and the random source are passed in.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """``closed``: legs pass. ``open``: none does. ``half_open``: one may try."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When to open and for how long. Times in seconds.

    Opens after ``failures`` in a row, or when at least ``ratio`` of no fewer than ``least`` outcomes within
    ``window`` failed. Stays open for ``pause``, twice as long each time the trial fails, ``longest`` at most;
    each time up to ``jitter`` of it longer, so that several routers do not try at once.
    """

    failures: int = 5
    ratio: float = 0.5
    least: int = 20
    window: float = 30.0
    pause: float = 2.0
    longest: float = 60.0
    jitter: float = 0.3


_SLOTS = 10


class _Slot:
    """Outcomes of a tenth of the window, from ``start`` on."""

    __slots__ = ("failed", "start", "succeeded")

    def __init__(self, start: float) -> None:
        self.start = start
        self.failed = 0
        self.succeeded = 0


class Breaker:
    """``now``: seconds on a monotonic clock, always the same one. ``draw``: a number in [0, 1)."""

    def __init__(self, policy: BreakerPolicy, draw: Callable[[], float] = random.random) -> None:
        self._policy = policy
        self._draw = draw
        self._streak = 0
        self._last_failure = 0.0
        self._slots: deque[_Slot] = deque()
        self.reset()

    def reset(self) -> None:
        """Close and forget: this is another engine now."""
        self._open = False
        self._until = 0.0
        self._trial_until: float | None = None
        self._pause = 0.0
        self._closed_at: float | None = None
        self._clear()

    def state(self, now: float) -> BreakerState:
        """What it is at ``now``."""
        if not self._open:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._until else BreakerState.HALF_OPEN

    @property
    def tripped(self) -> bool:
        """Not closed."""
        return self._open

    def allows(self, now: float) -> bool:
        """A leg may go. When half open, only until one :meth:`claim` s the trial."""
        if not self._open:
            return True
        return now >= self._until and (self._trial_until is None or now >= self._trial_until)

    def claim(self, now: float) -> None:
        """A leg goes. When half open it is the trial, and no other goes before its outcome; a trial that
        never tells (its client left) is over after as long as the breaker was open."""
        if self._open and now >= self._until:
            self._trial_until = now + self._pause

    def retry_at(self, now: float) -> float:
        """When the next leg may go: what is least bad has the smallest."""
        if not self._open:
            return now
        return max(now, self._until, self._trial_until or 0.0)

    def failed(self, now: float) -> None:
        """A leg failed by the engine's fault. What fails while open was sent before, or for want of better,
        and says nothing new."""
        if self._open:
            if now >= self._until:
                self._reopen(now, min(2 * self._pause, self._policy.longest))
            return
        if self._streak and now - self._last_failure > self._policy.window:
            self._streak = 0
        self._streak += 1
        self._last_failure = now
        self._slot(now).failed += 1
        if self._streak >= self._policy.failures or self._mostly_fails():
            flaps = self._closed_at is not None and now - self._closed_at <= self._policy.window
            pause = min(2 * self._pause, self._policy.longest) if flaps else self._policy.pause
            self._reopen(now, pause)

    def succeeded(self, now: float) -> None:
        """A leg was served. While open that ends the pause; when half open it closes the breaker."""
        if not self._open:
            self._streak = 0
            self._slot(now).succeeded += 1
            return
        if now < self._until:
            self.hasten(now)
            return
        self._open = False
        self._trial_until = None
        self._closed_at = now
        self._clear()

    def hasten(self, now: float) -> None:
        """There are signs of life: let the trial be now."""
        self._until = min(self._until, now)
        self._trial_until = None

    def _reopen(self, now: float, pause: float) -> None:
        self._open = True
        self._pause = pause
        self._until = now + pause * (1.0 + self._policy.jitter * self._draw())
        self._trial_until = None

    def _clear(self) -> None:
        self._streak = 0
        self._last_failure = 0.0
        self._slots.clear()

    def _slot(self, now: float) -> _Slot:
        width = self._policy.window / _SLOTS
        if not self._slots or now - self._slots[-1].start >= width:
            self._slots.append(_Slot(now))
            while now - self._slots[0].start > self._policy.window:
                self._slots.popleft()
        return self._slots[-1]

    def _mostly_fails(self) -> bool:
        failed = sum(slot.failed for slot in self._slots)
        total = failed + sum(slot.succeeded for slot in self._slots)
        return total >= self._policy.least and failed >= self._policy.ratio * total


_CLIENT_FAULTS = (
    b"maximum context length",
    b"max_model_len",
    b"prompt is too long",
)


def blames_engine(status: int, body: bytes = b"", *, retry_after: bool = False) -> bool:
    """True when an answer other than 200 counts against the engine.

    Not when the client is at fault, also where an engine answers 500 to a prompt that is too long
    (https://github.com/vllm-project/router/pull/148), and not when the engine is only busy: 429, or 503
    with Retry-After.
    """
    if status < 500 or (status == 503 and retry_after):
        return False
    start = body[:4096].lower()
    return not any(fault in start for fault in _CLIENT_FAULTS)
