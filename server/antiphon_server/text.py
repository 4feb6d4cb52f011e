"""Text of a wanted number of tokens, the same in every run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

_SERVICES = ("checkout", "payments", "inventory", "search", "mail")
_EVENTS = (
    "request served in {} ms",
    "queue holds {} items",
    "retry after {} ms",
    "cache answered {} keys",
    "connection {} closed by peer",
)
_TRIES = 4


def lines(seed: int) -> Iterator[str]:
    """Log lines without end."""
    chance = random.Random(seed)
    for number in itertools.count(1):
        event = chance.choice(_EVENTS).format(chance.randint(2, 4999))
        yield f"{number:05d} {chance.choice(_SERVICES)}-{chance.randint(1, 9)}: {event}\n"


def cut(seed: int, characters: int) -> str:
    """So many characters of log."""
    parts: list[str] = []
    size = 0
    for part in lines(seed):
        if size >= characters:
            break
        parts.append(part)
        size += len(part)
    return "".join(parts)[:characters]


def fit(seed: int, tokens: int, count: Callable[[str], int]) -> str:
    """A log whose ``count`` is ``tokens``, or nearly: a tokenizer may not allow it exactly."""
    characters = tokens
    text = cut(seed, characters)
    for _ in range(_TRIES):
        missing = tokens - count(text)
        if not missing:
            break
        characters = max(1, characters + round(missing * characters / max(1, tokens - missing)))
        text = cut(seed, characters)
    return text
