"""One HTTP/1.1 connection to an engine. httptools, written in C, does the parsing.

::

    UpstreamError         an engine could not be reached, or did not answer as HTTP wants
    ├── UnsentError       no byte of the request left, so the engine cannot know of it
    ├── DisconnectedError the connection broke later; the engine may have worked on it
    ├── TimedOutError     likewise, but by our clock
    └── TooLargeError     a reply that had to be held in memory is larger than the limit
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

Sink = Callable[[bytes], bool]
"""Takes bytes of a body as they come; False: it does not want these."""

HIGH_WATER = 256 * 1024
"""Bytes kept unread per response before the socket is paused."""


_FRAMING = {b"content-length", b"transfer-encoding"}
"""Headers that say where a body ends."""


class UpstreamError(Exception):
    """An engine could not be reached, or did not answer as HTTP wants."""


class UnsentError(UpstreamError):
    """The connection could not be opened: nothing was sent. ``refused``: nobody listens there."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class DisconnectedError(UpstreamError):
    """The connection broke after the request may have been sent.

    ``stale``: it was a kept-alive connection and nothing of a reply had come, so most likely the engine
    closed it while idle.
    """

    def __init__(self, message: str, *, stale: bool = False) -> None:
        super().__init__(message)
        self.stale = stale


class TimedOutError(UpstreamError):
    """The engine kept silent for longer than the limit."""


class TooLargeError(UpstreamError):
    """A reply that had to be held in memory is larger than the limit."""


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._limit = self._deadline = 0.0
        self._paused = False
        self._closed = False
        self._parser = httptools.HttpResponseParser(self)
        self._begin()

    def _begin(self) -> None:
        self._chunks.clear()
        self._buffered = 0
        self.head_done = False
        self.complete = False
        self.started = False
        self.keep_alive = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._framed = False
        self._error: UpstreamError | None = None

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.started = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._error = DisconnectedError(f"reply is not HTTP/1.1: {error}")
            self.close()
        if self._sink is not None and self._poured(self._sink):
            return
        self._wake()

    def _poured(self, sink: Sink) -> bool:
        """``sink`` has taken what came, and more is to come."""
        if self._waiter is None or self._waiter.done() or not self._chunks:
            return False
        data = self._joined()
        if not sink(data):
            self._chunks.append(data)
            return False
        self._emptied()
        self._deadline = self._loop.time() + self._limit
        return not self.complete and self._error is None

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._cancel_timer()
        if self.head_done and not self.complete and not self._framed and exc is None:
            self.complete = True  # a body without length ends with its connection
        if not self.complete and self._error is None:
            self._error = DisconnectedError(
                f"connection closed before the reply was complete ({exc or 'EOF'})"
            )
        self._wake()

    # httptools
    def on_message_begin(self) -> None:
        if self.complete:  # nobody asked for another reply: it must not pass for the next one's
            raise ValueError("more than one reply to a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in _FRAMING:
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim reply, e.g. 100 Continue
            self.headers = []
            self._framed = False
            return
        self.status = status
        self.head_done = True
        self.keep_alive = self._parser.should_keep_alive() and self._framed

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.head_done:
            self.complete = True

    # used by Response and Upstream
    @property
    def usable(self) -> bool:
        return not self._closed and self._transport is not None and not self._transport.is_closing()

    def send(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        self._begin()
        if len(body) < 65536:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def take(self) -> bytes | None:
        """All bytes of the body that have come, or None."""
        if not self._chunks:
            return None
        data = self._joined()
        self._emptied()
        return data

    def _emptied(self) -> None:
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _joined(self) -> bytes:
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        return data

    def failure(self) -> UpstreamError | None:
        return self._error

    async def wait(self, limit: float, sink: Sink | None = None) -> None:
        """Until something happened that ``sink`` does not take. Raises TimedOutError after ``limit``
        seconds in which nothing did."""
        waiter = self._waiter = self._loop.create_future()
        self._sink = sink
        self._limit, self._deadline = limit, self._loop.time() + limit
        # One timer serves all waits: a stream waits for each of its chunks, and the next reply comes soon.
        if self._timer is None or self._timer.when() > self._deadline:
            self._set_timer()
        try:
            await waiter
        finally:
            self._waiter = self._sink = None

    def _set_timer(self) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_at(self._deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
            return
        self._waiter.set_exception(TimedOutError(f"no byte for {self._limit:g} s"))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._closed = True
        self._cancel_timer()
        if self._transport is not None:
            self._transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
