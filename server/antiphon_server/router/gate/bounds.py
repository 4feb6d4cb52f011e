"""What a request's head may weigh: while it arrives, and as a whole.

uvicorn's parser keeps what it is sent until a head is complete, however long that grows or takes, so its
protocol gets bounds here.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.errors import (
    HeadersTooLargeError,
    PathTooLongError,
    RequestTimeoutError,
    RouterError,
)
from antiphon_server.router.gate.line import LONGEST_BODY, Line, offer


def check_head(scope: Scope, settings: RouterSettings) -> None:
    """Whether a head is within bounds.

    Raises:
        HeadersTooLargeError, PathTooLongError
    """
    headers = scope["headers"]
    if len(headers) > settings.max_headers:
        raise HeadersTooLargeError(
            f"{len(headers)} headers are more than {settings.max_headers}: send fewer, or have "
            "max_headers raised"
        )
    size = sum(map(len, chain.from_iterable(headers)))
    if size > settings.max_header_bytes:
        raise HeadersTooLargeError(_too_large(settings.max_header_bytes))
    length = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    if length > settings.max_path:
        raise PathTooLongError(
            f"a path of {length} bytes is longer than {settings.max_path}: shorten it, or have max_path "
            "raised"
        )


_LINGER = 1.0
"""Seconds that a refused client has to read the answer."""


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with bounds on what arrives outside of bodies and on how long a head takes.

    Make a class with the bounds of some settings by :func:`protocol_within`. A connection holds at most
    ``head_bytes`` and one read more: a head, trailers and what frames chunks count, bodies do not.
    """

    head_bytes = 64 * 1024
    head_seconds = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = 0  # bytes since the parser last came to something whole
        self._progress = False
        self._refused = False
        self._in_head = False
        self._deadline: asyncio.TimerHandle | None = None
        self._line: Line | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.head_seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)
        if self._line is not None:
            self._line.left()

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._progress = False
        super().data_received(data)
        if self._in_head and self._deadline is None:  # most heads are whole at once
            self._deadline = self.loop.call_later(self.head_seconds, self._late)
        self._unread = 0 if self._progress else self._unread + len(data)
        if self._unread > self.head_bytes:
            self._refuse(HeadersTooLargeError(_too_large(self.head_bytes)))

    def on_message_begin(self) -> None:
        self._progress = True
        self._head_is_here()
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._progress = True
        self._head_is_here()
        super().on_headers_complete()
        self._line = offer(self.scope, self.cycle, self.transport)

    def on_body(self, body: bytes) -> None:
        self._progress = True
        cycle = self.cycle
        if cycle.response_complete:
            return
        # uvicorn would wake the application for each part, and stop reading at 64 KB until it has come.
        cycle.body += body
        if len(cycle.body) > LONGEST_BODY:
            self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._progress = True
        super().on_message_complete()
        if self._line is not None:
            self._line.arrived()

    def _head_is_here(self) -> None:
        self._in_head = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        if self.headers is None:  # a connection that never asked for anything
            self.transport.close()
            return
        self._refuse(
            RequestTimeoutError(f"the request's headers did not arrive within {self.head_seconds:g} s")
        )

    def _refuse(self, error: RouterError) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._head_is_here()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        body = error.body()
        lines = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + lines % len(body) + body)
        # A client that still sends would be reset, and lose the answer, if the connection were closed now.
        self._deadline = self.loop.call_later(_LINGER, self.transport.close)


def protocol_within(settings: RouterSettings) -> type[BoundedProtocol]:
    """uvicorn's ``http`` option for a router with these settings."""
    bounds = {
        "head_bytes": settings.max_header_bytes + settings.max_path,
        "head_seconds": settings.head_timeout,
    }
    return type("RouterProtocol", (BoundedProtocol,), bounds)


def _too_large(limit: int) -> str:
    return f"headers are larger than {limit} bytes: send fewer, or have max_header_bytes raised"
