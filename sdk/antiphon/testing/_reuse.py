"""What the router says of a turn in ``X-Antiphon-Reuse``."""

from __future__ import annotations

from dataclasses import dataclass

HEADER = "X-Antiphon-Reuse"


@dataclass(frozen=True, slots=True)
class Reuse:
    """``path``: ``reuse`` or ``cold``, of a real router ``append`` as well. Tokens: ``matched`` came from the
    last turn, of the ``prompt``'s; ``held``: the conversation's when the turn came, None where none were.
    ``reason``: a word for it."""

    path: str
    matched: int
    reason: str
    prompt: int
    held: int | None = None

    def __str__(self) -> str:
        """The header's value."""
        said = f"path={self.path}; matched={self.matched}; reason={self.reason}; prompt={self.prompt}"
        return said if self.held is None else f"{said}; held={self.held}"
