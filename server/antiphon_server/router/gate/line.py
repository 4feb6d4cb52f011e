"""A request's connection as its turn sees it, past ASGI: its body when all of it has come, without a message
for each part; its client's leaving, without a task that waits for it; a reply's chunks, without waking the
turn.

ASGI has a message for either, and a turn would need a second task to hear of both. A server that offers a
line puts it into the scope; without one, turns go by ASGI (:class:`antiphon_server.router.turn.inbox.Inbox`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Scope

_LINE = "antiphon.line"
LONGEST_BODY = 1024 * 1024
"""Bytes of a body that are read before the application asks for them."""


class Line:
    """``cycle``: uvicorn's, of this request. ``transport``: of the connection. As the cycle's transport, it
    sends a reply's head together with what comes first of the body: each write wakes the client."""

    __slots__ = ("__weakref__", "_cycle", "_head", "_holds", "_leave", "_transport", "_whole")

    def __init__(self, cycle: Any, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._whole: asyncio.Future[None] | None = None
        self._leave: Callable[[], object] | None = None
        self._holds = False
        self._head = b""

    # for the turn
    def watch(self, leave: Callable[[], object] | None) -> None:
        """Have ``leave`` called when the client leaves, or now if it has; None: nothing any more."""
        self._leave = leave
        if self._cycle.disconnected:
            self.left()

    @property
    def whole(self) -> bool:
        """All of the body has come."""
        return not self._cycle.more_body

    async def arrive(self) -> None:
        """Until all of the body has come."""
        self._whole = asyncio.get_running_loop().create_future()
        await self._whole

    def take(self) -> bytes:
        """The body."""
        data, self._cycle.body = bytes(self._cycle.body), bytearray()
        return data

    def hold_head(self) -> None:
        """Keep what is written next until something follows it."""
        self._holds = True

    def send(self, data: bytes) -> bool:
        """Send more of a chunked body now. False: not sent, as the client has not taken what went before, or
        the reply has no such body; go by ASGI."""
        cycle = self._cycle
        if (
            not cycle.chunked_encoding
            or cycle.flow.write_paused
            or cycle.disconnected
            or self._head
            or self._transport.is_closing()
        ):
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def let_go(self) -> None:
        """The request is over, or has no use for it. Line and cycle hold each other until then, and would go
        only with the garbage collector's full round, which stops everybody."""
        self._leave = None
        self._cycle.transport = self._transport

    # for the server
    def arrived(self) -> None:
        """The body is whole."""
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(None)

    def left(self) -> None:
        """The client has left."""
        if self._leave is not None:
            self._leave()

    def write(self, data: bytes) -> None:
        """As the cycle's transport."""
        if self._transport.is_closing():  # uvloop's fails once it is closed
            return
        if self._holds:
            self._holds = False
            self._head = data
            return
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)

    def close(self) -> None:
        """As the cycle's transport."""
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()

    def is_closing(self) -> bool:
        """As the cycle's transport."""
        return self._transport.is_closing()


def take_line(scope: Scope) -> Line | None:
    """The request's, where its server offers one. Whoever takes it has to let go of it."""
    found: Line | None = scope.pop(_LINE, None)
    return found


def offer(scope: Any, cycle: Any, transport: asyncio.Transport) -> Line | None:
    """Put a line into the scope of a request whose body is to be of a known, moderate length. ``cycle``: see
    :class:`Line`."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if cycle.waiting_for_100_continue or not length.isdigit() or int(length) > LONGEST_BODY:
        return None
    line = Line(cycle, transport)
    scope[_LINE] = line
    cycle.transport = line
    return line
