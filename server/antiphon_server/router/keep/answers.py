"""How long answers get, learnt: a turn's room is reserved before anybody knows. Pure."""

from __future__ import annotations

import math

_BUCKETS = 64
"""Each half a power of two."""
_FADE = 1.002
"""An answer weighs so much more than the one before."""
_BEYOND = 0.01
_FIRST = 2048
"""Tokens, until enough was seen."""
_ENOUGH = 50


class Answers:
    """Lengths in tokens. The newer ones weigh more."""

    def __init__(self) -> None:
        self._counts = [0.0] * _BUCKETS
        self._weight = 1.0
        self._seen = 0
        self._most = _FIRST

    def add(self, tokens: int) -> None:
        """An answer came to this."""
        self._weight *= _FADE
        self._counts[min(_BUCKETS - 1, int(2 * math.log2(max(1, tokens))))] += self._weight
        self._seen += 1
        if self._weight > 1e9:
            self._counts = [count / self._weight for count in self._counts]
            self._weight = 1.0
        if self._seen >= _ENOUGH and self._seen % 10 == 0:
            self._most = self._quantile()

    def most(self, limit: int | None) -> int:
        """What the next one comes to at most: twice what one in a hundred exceeds, and no more than its
        ``limit``. Clients allow far more than they get, and room for all of it would displace everything."""
        return self._most if limit is None else min(limit, self._most)

    def _quantile(self) -> int:
        beyond = _BEYOND * sum(self._counts)
        for index in range(_BUCKETS - 1, -1, -1):
            beyond -= self._counts[index]
            if beyond < 0:
                return 2 * math.ceil(2 ** ((index + 1) / 2))
        return _FIRST
