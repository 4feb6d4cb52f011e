"""Consistent hashing: the same key meets the same workers in the same order on every router, and few keys
move when the fleet changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b

POINTS = 128
"""Points of each worker on the ring; with this many the largest share is about a quarter above the mean."""


class Ring:
    """Names on a circle of 64-bit numbers."""

    def __init__(self, names: Iterable[str], points: int = POINTS) -> None:
        self._names = sorted(set(names))
        placed = sorted(
            (point, position) for position, name in enumerate(self._names) for point in _points(name, points)
        )
        self._points = [point for point, _ in placed]
        self._owners = [owner for _, owner in placed]

    def __len__(self) -> int:
        return len(self._names)

    def walk(self, point: int) -> Iterator[str]:
        """Every name once, from ``point`` on."""
        seen: set[int] = set()
        start = bisect_right(self._points, point)
        for index in range(len(self._points)):
            owner = self._owners[(start + index) % len(self._owners)]
            if owner not in seen:
                seen.add(owner)
                yield self._names[owner]
                if len(seen) == len(self._names):
                    return


@lru_cache(maxsize=1024)
def _points(name: str, count: int) -> tuple[int, ...]:
    """Kept, as a ring is made anew at every change of the fleet."""
    digests = (blake2b(f"{name}\0{index}".encode(), digest_size=8).digest() for index in range(count))
    return tuple(int.from_bytes(digest, "big") for digest in digests)
