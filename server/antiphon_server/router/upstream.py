"""The router's HTTP/1.1 client: the one place where bytes go to engines and come back.

A leg is one request on one connection, read chunk by chunk as the engine sends it, with back-pressure on both
sides. It is our own because a turn is two legs and general clients cost more than all the rest of a turn
(``docs/performance.md``). httptools, written in C, does the parsing.

Errors, all :class:`UpstreamError`:

- :class:`UnsentError`: no byte of the request left, so the engine cannot know of it;
- :class:`DisconnectedError`: the connection broke later; the engine may have worked on it;
- :class:`TimedOutError`: likewise, but by our clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

HIGH_WATER = 256 * 1024
"""Bytes kept unread per response before the socket is paused."""


class UpstreamError(Exception):
    """An engine could not be reached, or did not answer as HTTP wants."""


class UnsentError(UpstreamError):
    """The connection could not be opened: nothing was sent."""


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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to open a connection, until the head of a reply, between two chunks."""

    connect: float
    first: float
    idle: float


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine listens. ``authority`` is the Host header."""

    host: str
    port: int
    tls: bool
    authority: str
    path: str

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Split ``http(s)://host[:port][/path]``.

        Raises:
            ValueError: another scheme, or no host.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(
                f"engine URL {url!r} is not http(s)://host[:port]: give the address the engine serves on"
            )
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"))


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._paused = False
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks.clear()
        self._buffered = 0
        self.head_done = False
        self.complete = False
        self.started = False
        self.keep_alive = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._error: UpstreamError | None = None

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = DisconnectedError(f"reply is not HTTP/1.1: {error}")
            self.close()
        self._wake()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if self.head_done and not self.complete and not self._framed:
            self.complete = True  # a body without length ends with its connection
        if not self.complete and self._error is None:
            self._error = DisconnectedError(
                f"connection closed before the reply was complete ({exc or 'EOF'})"
            )
        self._wake()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    # httptools
    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # an interim reply, e.g. 100 Continue
            self.headers = []
            return
        self.status = status
        self.head_done = True
        self._framed = any(name in {b"content-length", b"transfer-encoding"} for name, _ in self.headers)
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
    _framed = True

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
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def failure(self) -> UpstreamError | None:
        return self._error

    async def wait(self, limit: float) -> None:
        """Until something happened. Raises TimedOutError after ``limit`` seconds."""
        waiter = self._waiter = self._loop.create_future()
        timer = self._loop.call_later(limit, _expire, waiter, limit)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()


def _expire(waiter: asyncio.Future[None], timeout: float) -> None:
    if not waiter.done():
        waiter.set_exception(TimedOutError(f"no byte for {timeout:g} s"))


class Response:
    """Head of a reply, and its body as it comes. Read it to the end or close it."""

    def __init__(self, upstream: Upstream, origin: Origin, connection: Connection, idle: float) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self._upstream = upstream
        self._origin = origin
        self._connection: Connection | None = connection
        self._idle = idle

    def header(self, name: bytes) -> bytes | None:
        """First value of a header, its name in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    async def chunk(self) -> bytes | None:
        """Next bytes of the body as soon as they are there, None at its end."""
        connection = self._connection
        if connection is None:
            return None
        while True:
            data = connection.take()
            if data is not None:
                return data
            if connection.complete:
                self._connection = None
                self._upstream._give_back(self._origin, connection)
                return None
            error = connection.failure()
            if error is not None:
                self.close()
                raise error
            try:
                await connection.wait(self._idle)
            except TimedOutError:
                self.close()
                raise

    def buffered(self) -> bytes:
        """What has come and was not read yet."""
        return (self._connection.take() if self._connection is not None else None) or b""

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises TooLargeError above ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        while (data := await self.chunk()) is not None:
            size += len(data)
            if size > limit:
                self.close()
                raise TooLargeError(f"reply is larger than {limit} bytes")
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Drop the connection; the engine sees its client leave. Harmless once the body was read."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Upstream:
    """Kept-alive connections to every engine.

    ``keep_alive``: seconds a connection may idle here; must be below what the engine grants (vLLM: 5 s
    unless told).
    """

    def __init__(self, timeouts: Timeouts, *, keep_alive: float = 3.0) -> None:
        self._timeouts = timeouts
        self._keep_alive = keep_alive
        self._idle: dict[Origin, deque[tuple[float, Connection]]] = {}

    async def send(
        self,
        origin: Origin,
        method: str,
        path: str,
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        timeouts: Timeouts | None = None,
        fresh: bool = False,
        repeat: bool = False,
    ) -> Response:
        """Send a request and wait for the head of its reply.

        ``fresh``: not on a kept-alive connection. ``repeat``: the request may be sent twice, so when the
        engine closed a kept-alive connection under us it is sent again on a fresh one.

        Raises:
            UpstreamError: see the module.
        """
        limits = timeouts or self._timeouts
        try:
            return await self._send(origin, method, path, headers, body, limits, fresh)
        except DisconnectedError as error:
            if not (repeat and error.stale):
                raise
        return await self._send(origin, method, path, headers, body, limits, True)

    async def _send(
        self,
        origin: Origin,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        limits: Timeouts,
        fresh: bool,
    ) -> Response:
        loop = asyncio.get_running_loop()
        connection = None if fresh else self._reusable(origin, loop.time())
        reused = connection is not None
        if connection is None:
            connection = await self._open(origin, loop, limits.connect)
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = (
            f"{method} {origin.path}{path} HTTP/1.1\r\nHost: {origin.authority}\r\n{fields}"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")
        connection.send(head, body)
        try:
            deadline = loop.time() + limits.first
            while not connection.head_done:
                error = connection.failure()
                if error is not None:
                    stale = reused and not connection.started
                    raise DisconnectedError(f"{origin.authority}: {error}", stale=stale)
                await connection.wait(max(0.0, deadline - loop.time()))
        except TimedOutError:
            connection.close()
            raise TimedOutError(f"{origin.authority}: no reply within {limits.first:g} s") from None
        except BaseException:
            connection.close()
            raise
        return Response(self, origin, connection, limits.idle)

    async def close(self) -> None:
        """Close what idles."""
        for queue in self._idle.values():
            for _, connection in queue:
                connection.close()
        self._idle.clear()

    async def _open(self, origin: Origin, loop: asyncio.AbstractEventLoop, limit: float) -> Connection:
        try:
            async with asyncio.timeout(limit):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop), origin.host, origin.port, ssl=True if origin.tls else None
                )
        except TimeoutError:
            raise UnsentError(f"{origin.authority}: no connection within {limit:g} s") from None
        except OSError as error:
            raise UnsentError(f"{origin.authority}: {error}") from error
        return connection

    def _reusable(self, origin: Origin, now: float) -> Connection | None:
        queue = self._idle.get(origin)
        while queue:
            since, connection = queue.pop()
            if connection.usable and now - since < self._keep_alive:
                return connection
            connection.close()
        return None

    def _give_back(self, origin: Origin, connection: Connection) -> None:
        if not (connection.usable and connection.keep_alive):
            connection.close()
            return
        now = asyncio.get_running_loop().time()
        queue = self._idle.setdefault(origin, deque())
        queue.append((now, connection))
        while queue and now - queue[0][0] >= self._keep_alive:
            with contextlib.suppress(Exception):
                queue.popleft()[1].close()
