"""A server's side of HTTP/1.1, lean: bodies are read into one buffer and searched where they lie."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import cast

_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_FIRST = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """``head``: as it came. The body is a stretch of ``buffer``, good until the request has been served."""

    head: bytes
    buffer: bytearray
    start: int
    end: int

    @property
    def line(self) -> tuple[str, str]:
        """Method and path."""
        method, path, _ = self.head[: self.head.find(b"\r\n")].decode("latin-1").split(" ", 2)
        return method, path

    @property
    def body(self) -> bytes:
        """A copy."""
        return bytes(self.buffer[self.start : self.end])

    def has(self, name: bytes) -> bool:
        """The body has these bytes."""
        return self.buffer.find(name, self.start, self.end) >= 0

    def match(self, name: bytes, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """``pattern`` where ``name``, with which it begins, comes first: plain search is the faster one."""
        at = self.buffer.find(name, self.start, self.end)
        return pattern.match(self.buffer, at, self.end) if at >= 0 else None


class Receiver(asyncio.BufferedProtocol):
    """One connection. Requests are served one after the other; bodies have a length."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_FIRST)
        self._filled = 0
        self._head = -1
        self._wanted = 0
        self.closed = False

    def serve(self, request: Request) -> None:
        """Answer it, now or later."""
        raise NotImplementedError

    def write(self, *parts: bytes) -> None:
        """To the client, unless it has left."""
        if self._transport is not None and not self.closed:
            self._transport.writelines(parts)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True

    def get_buffer(self, sizehint: int) -> memoryview:
        size = len(self._buffer)
        if self._filled == size or self._wanted > size:  # nobody looks at it between two reads
            self._buffer.extend(bytes(max(size, self._wanted - size)))
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        while self._filled:
            if self._head < 0:
                self._head = self._buffer.find(_END, 0, self._filled)
                if self._head < 0:
                    return
                found = _LENGTH.search(self._buffer, 0, self._head)
                self._wanted = self._head + len(_END) + (int(found[1]) if found else 0)
            if self._filled < self._wanted:
                return
            end = self._wanted
            request = Request(bytes(self._buffer[: self._head]), self._buffer, self._head + len(_END), end)
            self._head, self._wanted = -1, 0
            self.serve(request)
            rest = self._filled - end
            if rest:
                self._buffer[:rest] = self._buffer[end : self._filled]
            self._filled = rest
