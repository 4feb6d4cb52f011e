"""A client's connection, lean: httptools does the parsing, and the clock is read as bytes come."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import httptools


class ReplyError(Exception):
    """A reply that cannot be counted: an error, or none."""


class Connection(asyncio.Protocol):
    """One request at a time. ``status``, ``headers``, ``body``: of the last reply. ``begun``, ``ended``: when
    its first byte of body came and when its last, by the clock, in seconds."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[None] | None = None
        self._lost = False
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.begun = self.ended = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._end(ReplyError(f"the connection was closed ({exc or 'EOF'})"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ReplyError(f"the reply is not HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, data: bytes) -> None:
        if not self.begun:
            self.begun = time.perf_counter()
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.ended = time.perf_counter()
        self.status = self._parser.get_status_code()
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    @property
    def usable(self) -> bool:
        """Neither side has closed it."""
        return not self._lost

    async def ask(self, head: bytes, body: bytes) -> float:
        """Send a request and wait for the end of its reply; when it was sent.

        Raises:
            ReplyError: no reply, or another than 200.
        """
        if self._lost or self._transport is None:
            raise ReplyError("the connection was closed between two requests")
        self._reset()
        self._done = asyncio.get_running_loop().create_future()
        sent = time.perf_counter()
        self._transport.writelines((head, body))
        await self._done
        if self.status != 200:
            raise ReplyError(f"the reply is {self.status}: {b''.join(self.body)[:300]!r}")
        return sent

    def close(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()


async def connect(host: str, port: int) -> Connection:
    """A connection of its own."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return connection
