"""What it takes to compute a prompt anew: what a kept one saves."""

from __future__ import annotations

from collections.abc import Callable

_LIFE = 5.0


def recompute(tokens: int) -> float:
    """Seconds of prefill as long as nothing is measured: attention makes it grow faster than the tokens."""
    return tokens / 8192 * (1.0 + tokens / 32768)


class Recompute:
    """Seconds of prefill by ``measured`` (None: unknown), which is asked seldom: lengths are rounded to one
    in sixteen, and answers serve for some seconds."""

    def __init__(self, measured: Callable[[int], float | None], clock: Callable[[], float]) -> None:
        self._measured = measured
        self._clock = clock
        self._answers: dict[int, float] = {}
        self._since = clock()

    def __call__(self, tokens: int) -> float:
        """Seconds for so many tokens."""
        now = self._clock()
        if not 0.0 <= now - self._since < _LIFE:
            self._answers.clear()
            self._since = now
        step = 1 << max(0, tokens.bit_length() - 5)
        rounded = max(1, tokens // step * step)
        seconds = self._answers.get(rounded)
        if seconds is None:
            found = self._measured(rounded)
            seconds = self._answers[rounded] = found if found is not None else recompute(rounded)
        return seconds * tokens / rounded
