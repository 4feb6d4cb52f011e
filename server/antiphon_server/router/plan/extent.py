"""How much of a prompt is new: a comparison of the request's bytes with those of the last turn.

An estimate for planning only. Whether KV belongs to a prompt is decided by token hashes in the engines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import xxhash

_HISTORY = ("messages", "prompt", "input")
_LAST = re.compile(rb'\s*["\]]\s*\Z')
_LONGEST_END = 64
"""Bytes within which the last bracket or quote is looked for, white space around it included."""
_FRAME = ("tools", "system", "instructions", "chat_template", "chat_template_kwargs", "documents")
"""Fields that templates put before the history."""


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A prompt's history without its last bracket or quote. ``size``: bytes. ``checksum``: of them.
    ``frame``: checksum of what stands before it."""

    size: int
    checksum: int
    frame: int


def extent_of(body: Mapping[str, bytes | msgspec.Raw]) -> Extent | None:
    """The extent of a request; None if it has no history."""
    history = _history(body)
    return None if history is None else Extent(len(history), _checksum(history), _frame(body))


def size_of(body: Mapping[str, bytes | msgspec.Raw]) -> int:
    """Bytes of a request's history; 0 if it has none."""
    history = _history(body)
    return 0 if history is None else len(history)


def grown(before: Extent, body: Mapping[str, bytes | msgspec.Raw]) -> int | None:
    """Bytes that were appended since ``before``; None if anything before them has changed."""
    history = _history(body)
    if history is None or len(history) < before.size or _frame(body) != before.frame:
        return None
    if _checksum(history[: before.size]) != before.checksum:
        return None
    return len(history) - before.size


def _history(body: Mapping[str, bytes | msgspec.Raw]) -> memoryview | None:
    raw = next((body[name] for name in _HISTORY if name in body), None)
    if raw is None:
        return None
    data = memoryview(raw)
    last = _LAST.search(data, max(0, len(data) - _LONGEST_END))
    return data[: last.start()] if last is not None else data


def _frame(body: Mapping[str, bytes | msgspec.Raw]) -> int:
    own = xxhash.xxh3_64()
    for name in _FRAME:
        if name in body:
            own.update(name.encode())
            own.update(memoryview(body[name]))
    return own.intdigest()


def _checksum(data: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(data)
