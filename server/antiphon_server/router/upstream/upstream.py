"""The router's HTTP/1.1 client: the one place where bytes go to engines and come back.

A leg is one request on one connection, read chunk by chunk as the engine sends it, with back-pressure. It is
our own because a turn is two legs, and general clients cost more than all the rest of a turn
(``docs/performance.md``). Errors: see :mod:`antiphon_server.router.upstream.connection`.
"""

from __future__ import annotations

import asyncio
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
    TimedOutError,
    TooLargeError,
    UnsentError,
)


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

    def header(self, name: bytes) -> bytes | None:
        """First value of a header, its name in lower case."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    @property
    def complete(self) -> bool:
        """All of the body has come, so that reading it waits for nothing."""
        return self._connection is None or self._connection.complete

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
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
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
            refused = isinstance(error, ConnectionRefusedError)
            raise UnsentError(f"{origin.authority}: {_cause(error)}", refused=refused) from error
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
            queue.popleft()[1].close()


def _cause(error: OSError) -> str:
    """Why there is no connection, without the address that the system's own words name: clients read it."""
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails ({error.reason})"
    return os.strerror(error.errno) if error.errno else type(error).__name__
