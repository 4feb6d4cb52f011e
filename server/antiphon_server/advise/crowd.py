"""How many conversations decode's KV has room for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.5
"""As the router's ``keep_share`` is by default."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """``held``: conversations whose pinned tokens all of decode's KV holds, at the chosen ``keep``; ``kept``:
    those that :data:`SHARE` of it does. ``active``: at once, None: unknown. ``followed``: what had to make
    room is known turn by turn."""

    held: float
    kept: float
    active: float | None
    followed: bool

    @property
    def fits(self) -> float | None:
        """Of what active conversations pin, what decode may keep; None: unknown, or followed anyway."""
        return None if self.followed or self.active is None else self.kept / self.active

    @property
    def judged(self) -> bool:
        """Whether it is known if decode's memory suffices."""
        return self.followed or self.active is not None


def crowd(capacity: int | None, pinned: float, *, active: float | None, followed: bool) -> Crowd | None:
    """``capacity``: tokens of KV of all decode engines; ``pinned``: for each active conversation. None where
    one of them is unknown."""
    if not capacity or not pinned:
        return None
    return Crowd(capacity / pinned, capacity * SHARE / pinned, active, followed)
