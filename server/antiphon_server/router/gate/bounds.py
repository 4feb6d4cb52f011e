"""What a request's head may weigh: while it arrives, and as a whole.

uvicorn's parser keeps what it is sent until a head is complete, however long that grows or takes, and its
replies wait for their client for ever, so its protocol gets bounds here.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import chain
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.errors import (
    BadRequestError,
    HeadersTooLargeError,
    PathTooLongError,
    RequestTimeoutError,
    RouterError,
)
from antiphon_server.router.gate.flow import Flow
from antiphon_server.router.gate.line import LONGEST_BODY, Line, offer
from antiphon_server.router.gate.upgrade import plain_head

log = logging.getLogger(__name__)


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
    """uvicorn's HTTP/1.1, with bounds on what arrives outside of bodies, on how long a head takes, and on how
    long a client takes nothing of a reply.

    Make a class with the bounds of some settings by :func:`protocol_within`. A connection holds at most
    ``head_bytes`` and one read more: a head, trailers and what frames chunks count, bodies do not.
    """

    head_bytes = 64 * 1024
    head_seconds = 30.0
    idle_seconds = 300.0

    flow: Flow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = 0  # bytes since the parser last came to something whole
        self._progress = False
        self._refused = False
        self._in_head = False
        self._deadline: asyncio.TimerHandle | None = None
        self._served: RequestResponseCycle | None = None  # uvicorn's own is the one that arrives
        self._line: Line | None = None  # of the one that is served

    @classmethod
    def keep_to(cls, settings: RouterSettings) -> None:
        """Have the bounds of these settings from now on."""
        cls.head_bytes = settings.max_header_bytes + settings.max_path
        cls.head_seconds = settings.head_timeout
        cls.idle_seconds = settings.idle_timeout

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        bounds = type(self)
        self.flow = Flow(transport, lambda: bounds.idle_seconds)
        self._deadline = self.loop.call_later(self.head_seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)
        self.flow.end()
        self._leave()
        # Those that wait will not be served: they and this protocol hold each other until the garbage
        # collector's full round.
        self.pipeline.clear()
        self.cycle = self._served  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._progress = False
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            log.info("request.unreadable", extra={"cause": str(error)})
            self._refuse(BadRequestError(f"the request cannot be read as HTTP/1.1: {error}"))
            return
        if self._in_head:  # most heads are whole at once
            self._time_head()
        self._unread = 0 if self._progress else self._unread + len(data)
        if self._unread > self.head_bytes:
            self._refuse(HeadersTooLargeError(_too_large(self.head_bytes)))

    def _parse(self, data: bytes | memoryview) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # llhttp ends a message after a head that asks for another protocol, and has no way to be
                # told otherwise: its body would be the next request.
                data = memoryview(data)[upgrade.args[0] :]
                method, version = self.parser.get_method(), self.parser.get_http_version()
                if method == b"CONNECT":
                    self._refuse(BadRequestError("CONNECT is not served: this is no proxy"))
                    return
                self.parser = httptools.HttpRequestParser(self)
                with suppress(AttributeError):  # httptools before 0.6.3
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
                self.parser.feed_data(plain_head(method, self.url, version, self.headers))

    def on_message_begin(self) -> None:
        self._progress = True
        self._head_is_here()
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._progress = True
        self._head_is_here()
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        if not self.pipeline:
            self._serve(self.cycle)

    def _serve(self, cycle: RequestResponseCycle) -> None:
        """It is served from now on."""
        self._served = cycle
        self._line = offer(cycle.scope, cycle, self.transport)

    def _leave(self) -> None:
        """Tell whoever is served that its client is gone."""
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()
        if self._line is not None:
            self._line.left()

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
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self._line is not None:  # has arrived long since, where this is one that waits
            self._line.arrived()

    def on_response_complete(self) -> None:
        if self.pipeline and not self.transport.is_closing():
            self._serve(self.pipeline[-1][0])
        super().on_response_complete()
        self._time_head()

    def _time_head(self) -> None:
        """Give the head that has begun to arrive its time, unless it was sent ahead: while another request is
        served, nothing may be read."""
        served = self.cycle is not None and not self.cycle.response_complete
        if self._in_head and self._deadline is None and not served:
            self._deadline = self.loop.call_later(self.head_seconds, self._late)

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
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle is not self._served or cycle.response_started:
                self.transport.close()
                return
            self._leave()
        body = error.body()
        lines = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[error.status] + lines % len(body) + body)
        # A client that still sends would be reset, and lose the answer, if the connection were closed now.
        self._deadline = self.loop.call_later(_LINGER, self.transport.close)


def protocol_within(settings: RouterSettings) -> type[BoundedProtocol]:
    """uvicorn's ``http`` option for a router with these settings."""

    class RouterProtocol(BoundedProtocol):
        pass

    RouterProtocol.keep_to(settings)
    return RouterProtocol


def _too_large(limit: int) -> str:
    return f"headers are larger than {limit} bytes: send fewer, or have max_header_bytes raised"
