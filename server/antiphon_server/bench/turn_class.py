"""Classes of turns by their place in a conversation: the first, those soon after it, and the late ones."""

from __future__ import annotations

FIRST, EARLY, LATE = "1", "2-5", "6+"
CLASSES = (FIRST, EARLY, LATE)


def class_of(turn: int) -> str:
    """``turn``: counted from 1."""
    return FIRST if turn == 1 else EARLY if turn <= 5 else LATE
