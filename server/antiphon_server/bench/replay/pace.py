"""How fast recorded time passes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """``speed``: recorded seconds in a second; None: no gaps at all. ``longest``: recorded seconds that a gap
    counts for at most. ``unknown``: those of a gap that the record does not tell."""

    speed: float | None = 1.0
    longest: float | None = None
    unknown: float = 0.0

    def known(self, gap: float | None) -> float:
        """Recorded seconds."""
        return max(0.0, self.unknown if gap is None else gap)

    def seconds(self, gap: float) -> float:
        """To wait for."""
        if self.speed is None:
            return 0.0
        return (gap if self.longest is None else min(gap, self.longest)) / self.speed

    def __str__(self) -> str:
        if self.speed is None:
            return "no gaps"
        told = "real gaps" if self.speed == 1.0 else f"gaps divided by {self.speed:g}"
        return told if self.longest is None else f"{told}, none above {self.longest:g} s before"


def pace(text: str, *, longest: float | None = None, unknown: float = 0.0) -> Pace:
    """``real``, ``none``, or a number that gaps are divided by.

    Raises:
        ValueError: none of these.
    """
    match text:
        case "real":
            speed: float | None = 1.0
        case "none":
            speed = None
        case _:
            try:
                speed = float(text)
            except ValueError:
                speed = 0.0
            if not 0.0 < speed < float("inf"):
                raise ValueError(f"--time {text!r} is no pace: write real, none, or a number such as 10")
    return Pace(speed, longest, unknown)
