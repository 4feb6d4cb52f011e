"""When an append that is expected to be slower is tried all the same. Pure.

Paths that are not taken are not measured. Where an append once took long (on a machine that was busy with
something else, say), decode would never get another one, and the router would never learn that it is fast.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.03
"""Of the time to first token of turns that could have been appended: what trials may lose of it."""
EVERY = 8
"""Such turns from one measurement to a trial."""
ADVANCE = 4.0
"""Times a turn's time that an engine's first trials may lose: what calibration met may have been anything."""
DEAREST = 8.0
"""A turn is not tried that is expected to take so many times longer."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Expected TTFT of an append, and of the path that would be faster. Seconds."""

    append: float
    other: float

    @property
    def loss(self) -> float:
        """What the trial is expected to lose."""
        return max(0.0, self.append - self.other)


@dataclass(slots=True)
class Trials:
    """The trials of one decode engine. ``_saved``: seconds that they may lose, None before the first turn.
    One of them may lose more, by as much as the turn would take otherwise, and the next ones wait until that
    is made up for: all of them together lose no more than :data:`SHARE`, and a few turns' time once.
    ``_declined``: turns since the last measurement."""

    _saved: float | None = None
    _declined: int = 0

    def declined(self, turn: Trial) -> None:
        """A turn took the other path."""
        saved = ADVANCE * turn.other if self._saved is None else self._saved
        self._saved = saved + SHARE * turn.other
        self._declined += 1

    def measured(self) -> None:
        """An append was: nothing needs to be tried for a while."""
        self._declined = 0

    def due(self, turn: Trial) -> bool:
        """Whether this one is to be tried."""
        if self._saved is None or self._declined < EVERY:
            return False
        return turn.loss <= min(self._saved + turn.other, DEAREST * turn.other)

    def begin(self, turn: Trial) -> None:
        """It is tried. Costs what is expected, until :meth:`end` tells better."""
        self._declined = 0
        self._saved = (self._saved or 0.0) - turn.loss

    def end(self, turn: Trial, seconds: float) -> None:
        """It took so long."""
        self._saved = (self._saved or 0.0) + turn.loss - max(0.0, seconds - turn.other)
