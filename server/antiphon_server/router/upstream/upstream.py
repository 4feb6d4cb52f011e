"""The router's HTTP/1.1 client: the one place where bytes go to engines and come back.

A leg is one request on one connection, read chunk by chunk as the engine sends it, with back-pressure. It is
our own because a turn is two legs, and general clients cost more than all the rest of a turn
(``docs/performance.md``). Errors: see :mod:`antiphon_server.router.upstream.connection`.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from antiphon_server.router.upstream.connection import (
    Connection,
    DisconnectedError,
    Sink,
    TimedOutError,
    TooLargeError,
    UnsentError,
)

_JUST_NOW = 1.0
"""Seconds since a connection was used in which an engine, or a proxy before it, hardly closes it."""


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

    def __hash__(self) -> int:  # looked up at each leg
        return hash(self.authority)

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Split ``http(s)://host[:port][/path]``.

        Raises:
            ValueError: another scheme, no host, or a user or password, which would be in logs and metrics.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(
                f"engine URL {url!r} is not http(s)://host[:port]: give the address the engine serves on"
            )
        if "@" in parts.netloc:
            raise ValueError(
                f"engine URL of {parts.hostname!r} names a user or password, which is never sent: leave it "
                "out, and give the engines' key as engine_key"
            )
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.netloc, parts.path.rstrip("/"))


class Response:
    """Head of a reply, and its body as it comes. Read it to the end or close it."""

    def __init__(self, upstream: Upstream, origin: Origin, connection: Connection, idle: float) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self._upstream = upstream
        self._origin = origin
        self._connection: Connection | None = connection
        self._idle = idle
        self._parts: list[bytes] = []
        self._size = 0

    def header(self, name: bytes) -> bytes | None:
        """First value of a header, its name in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def over(self) -> bool:
        """The body was read to its end, or given up."""
        return self._connection is None

    @property
    def complete(self) -> bool:
        """All of the body has come, so that reading it waits for nothing."""
        return self._connection is None or self._connection.complete

    async def chunk(self, sink: Sink | None = None) -> bytes | None:
        """Next bytes of the body as soon as they are there, None at its end. ``sink``: is given what comes
        meanwhile at once, without waking who waits here; what it takes is not returned."""
        connection = self._connection
        if connection is None:
            return None
        while True:
            data = connection.take()
            if data is not None:
                return data
            if connection.complete:
                self._connection = None
                self._upstream.give_back(self._origin, connection)
                return None
            error = connection.failure()
            if error is not None:
                self.close()
                raise error
            try:
                await connection.wait(self._idle, sink)
            except TimedOutError:
                self.close()
                raise

    def buffered(self) -> bytes:
        """What has come and was not read yet."""
        return (self._connection.take() if self._connection is not None else None) or b""

    async def read(self, limit: int) -> bytes:
        """The whole body. Who is cancelled meanwhile can read on. Raises TooLargeError above ``limit``
        bytes."""
        parts = self._parts
        while (data := await self.chunk()) is not None:
            self._size += len(data)
            if self._size > limit:
                self.close()
                raise TooLargeError(f"reply is larger than {limit} bytes")
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Drop the connection; the engine sees its client leave. Harmless once the body was read."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Sending:
    """A request to an engine, and the wait for the head of its reply.

    ``fresh``: not on a kept-alive connection. ``repeat``: the request may be sent twice, so when the
    engine closed a kept-alive connection under us it is sent again on a fresh one. What may not be sent twice
    takes no connection that has idled for long.
    """

    def __init__(
        self,
        upstream: Upstream,
        origin: Origin,
        method: str,
        path: str,
        *,
        headers: Iterable[tuple[str, str]],
        body: bytes,
        timeouts: Timeouts,
        fresh: bool = False,
        repeat: bool = False,
    ) -> None:
        self._upstream = upstream
        self._origin = origin
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
        self._head = (
            f"{method} {origin.path}{path} HTTP/1.1\r\nHost: {origin.authority}\r\n{fields}"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")
        self._body = body
        self._limits = timeouts
        self._fresh = fresh
        self._repeat = repeat
        self._connection: Connection | None = None
        self._reused = False
        self._deadline = 0.0

    async def reply(self) -> Response:
        """Send, and wait. Who is cancelled while it waits leaves the request as it is: it can be waited for
        again, and has to be closed otherwise.

        Raises:
            UpstreamError: see the module. Nothing is left to close.
        """
        loop = asyncio.get_running_loop()
        while True:
            connection = self._connection
            if connection is None:
                connection = await self._sent(loop)
            try:
                while not connection.head_done:
                    error = connection.failure()
                    if error is not None:
                        stale = self._reused and not connection.started
                        raise DisconnectedError(f"{self._origin.authority}: {error}", stale=stale)
                    await connection.wait(max(0.0, self._deadline - loop.time()))
            except TimedOutError:
                self.close()
                silent = f"{self._origin.authority}: no reply within {self._limits.first:g} s"
                raise TimedOutError(silent) from None
            except DisconnectedError as error:
                self.close()
                if not (self._repeat and error.stale):
                    raise
                self._fresh, self._repeat = True, False
                continue
            return Response(self._upstream, self._origin, connection, self._limits.idle)

    async def _sent(self, loop: asyncio.AbstractEventLoop) -> Connection:
        connection = None
        if not self._fresh:
            within = math.inf if self._repeat else _JUST_NOW
            connection = self._upstream.reusable(self._origin, loop.time(), within)
        self._reused = connection is not None
        if connection is None:
            connection = await _open(self._origin, loop, self._limits.connect)
        self._connection = connection
        connection.send(self._head, self._body)
        self._deadline = loop.time() + self._limits.first
        return connection

    def close(self) -> None:
        """Wait no more; the engine sees its client leave."""
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

    def retune(self, timeouts: Timeouts, *, keep_alive: float) -> None:
        """Go by other limits from the next request on."""
        self._timeouts = timeouts
        self._keep_alive = keep_alive

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
        """Send a request and wait for the head of its reply. Arguments: see :class:`Sending`.

        Raises:
            UpstreamError: see the module.
        """
        request = Sending(
            self,
            origin,
            method,
            path,
            headers=headers,
            body=body,
            timeouts=timeouts or self._timeouts,
            fresh=fresh,
            repeat=repeat,
        )
        try:
            return await request.reply()
        except asyncio.CancelledError:
            request.close()
            raise

    async def close(self) -> None:
        """Close what idles."""
        for queue in self._idle.values():
            for _, connection in queue:
                connection.close()
        self._idle.clear()

    def reusable(self, origin: Origin, now: float, within: float) -> Connection | None:
        """A kept-alive connection that may be used, if there is one. ``within``: seconds that it has idled at
        most."""
        queue = self._idle.get(origin)
        while queue:
            since, connection = queue[-1]
            sound = connection.usable and now - since < self._keep_alive
            if sound and now - since >= within:
                return None
            queue.pop()
            if sound:
                return connection
            connection.close()
        return None

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """A reply was read to its end: keep its connection, or close it."""
        if not (connection.usable and connection.keep_alive):
            connection.close()
            return
        now = asyncio.get_running_loop().time()
        queue = self._idle.setdefault(origin, deque())
        queue.append((now, connection))
        while queue and now - queue[0][0] >= self._keep_alive:
            queue.popleft()[1].close()


async def _open(origin: Origin, loop: asyncio.AbstractEventLoop, limit: float) -> Connection:
    try:
        async with asyncio.timeout(limit):
            _, connection = await loop.create_connection(
                lambda: Connection(loop), origin.host, origin.port, ssl=True if origin.tls else None
            )
    except TimeoutError:
        raise UnsentError(f"{origin.authority}: no connection within {limit:g} s") from None
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        raise UnsentError(f"{origin.authority}: {_cause(error)}", refused=refused) from error
    return connection


def _cause(error: OSError) -> str:
    """Why there is no connection, without the address that the system's own words name: clients read it."""
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails ({error.reason})"
    return os.strerror(error.errno) if error.errno else type(error).__name__
