"""Messages and tools, each held once however many requests repeat them: a log of a growing history grows with
the square of its length, what is held with the length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from antiphon_server.traces.text import tool_written, written
from antiphon_server.traces.trace import Message

_encode = msgspec.json.Encoder(order="deterministic").encode


class Pool:
    """Equal messages become one object, so ``is`` tells whether two are equal."""

    def __init__(self, bytes_per_token: float = 4.0) -> None:
        self.bytes_per_token = bytes_per_token
        self._held: dict[bytes, Message] = {}
        self._sizes: dict[int, int] = {}
        self._tools: dict[bytes, tuple[Mapping[str, Any], ...]] = {}

    def one(self, message: Message) -> Message:
        return self._held.setdefault(digest(message), message)

    def all(self, messages: Iterable[Message]) -> tuple[Message, ...]:
        return tuple(map(self.one, messages))

    def tools(self, tools: Any) -> tuple[Mapping[str, Any], ...] | None:
        """None where there are none."""
        if not isinstance(tools, list | tuple):
            return None
        said = tuple(tool for tool in tools if isinstance(tool, Mapping))
        return self._tools.setdefault(digest(said), said) if said else None

    def tokens(self, messages: Iterable[Message], tools: Iterable[Mapping[str, Any]] | None = None) -> int:
        """As many as so much text may be. ``messages``: held here."""
        size = sum(self._size(message) for message in messages) + sum(
            len(tool_written(t)) for t in tools or ()
        )
        return max(1, round(size / self.bytes_per_token)) if size else 0

    def _size(self, message: Message) -> int:
        size = self._sizes.get(id(message))
        if size is None:
            size = self._sizes[id(message)] = len(written(message))
        return size


def digest(value: Any) -> bytes:
    """Of JSON; the order of names does not matter."""
    return blake2b(_encode(value), digest_size=16).digest()
