"""Synthetic text: the same words for the same id, other ones for any other."""

from __future__ import annotations

import hashlib
from itertools import product

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "st", "tr", "pl")
_RIMES = (
    "an",
    "el",
    "ir",
    "on",
    "un",
    "ad",
    "et",
    "ig",
    "op",
    "ub",
    "ark",
    "end",
    "int",
    "ost",
    "ump",
    "are",
)
_WORDS = tuple(f"{onset}{rime} " for onset, rime in product(_ONSETS, _RIMES))
_SHORTEST = min(map(len, _WORDS))


def words(scope: str, name: object, characters: int) -> str:
    """So many characters of words. ``scope``: where ``name`` means the same."""
    if characters <= 0:
        return ""
    digest = hashlib.shake_256(f"{scope}\0{name}".encode()).digest(characters // _SHORTEST + 1)
    return "".join(_WORDS[byte] for byte in digest)[:characters]
