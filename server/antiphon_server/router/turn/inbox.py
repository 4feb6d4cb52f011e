"""A request's body as it arrives, and the client's leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from starlette.types import Receive

from antiphon_server.router.errors import (
    BodyTooLargeError,
    EncodedBodyError,
    RequestTimeoutError,
)
from antiphon_server.router.gate.line import Line

Leave = Callable[[], object]

_EARLY = 1024 * 1024
"""Bytes taken of a body before anybody has asked for it: most are whole then, so that its client's leaving
is seen, and a full queue of them is small."""


class Inbox:
    """``line``: of the request's connection; without one its body and the client's leaving are ASGI's
    messages. ``limit``: bytes. ``timeout``: seconds from asking for the body to its end.

    Raises:
        BodyTooLargeError: it announces more than ``limit``.
        EncodedBodyError: it is compressed.
    """

    def __init__(
        self,
        receive: Receive,
        headers: Mapping[str, str],
        limit: int,
        timeout: float,
        line: Line | None = None,
    ) -> None:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"", "identity"}:
            raise EncodedBodyError("the request body is compressed: send it without Content-Encoding")
        declared = headers.get("content-length", "0")
        self._limit = limit
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        self._timeout = timeout
        self._line = line
        self._messages = _Messages(receive, limit) if line is None else None
        self._watching: asyncio.Task[None] | None = None

    def watch(self, leave: Leave) -> None:
        """Have ``leave`` called once when the client leaves, until :meth:`unwatch`. Before :meth:`body`."""
        if self._line is not None:
            self._line.watch(leave)
            return
        assert self._messages is not None
        self._watching = asyncio.create_task(self._messages.until_gone())
        self._watching.add_done_callback(lambda watching: None if watching.cancelled() else leave())

    def unwatch(self) -> None:
        """Call it no more."""
        if self._line is not None:
            self._line.watch(None)
        elif self._watching is not None:
            self._watching.cancel()

    async def body(self) -> bytes:
        """The whole body. Once.

        Raises:
            BodyTooLargeError
            RequestTimeoutError: it does not end in time.
        """
        source = self._line or self._messages
        assert source is not None
        if source.whole:
            return source.take()
        try:
            async with asyncio.timeout(self._timeout):
                await source.arrive()
        except TimeoutError:
            raise RequestTimeoutError(
                f"the request's body did not arrive within {self._timeout:g} s: send it faster"
            ) from None
        return source.take()


class _Messages:
    """The body and the client's leaving from ASGI's messages."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._asked = asyncio.Event()
        self._ended = asyncio.Event()

    async def until_gone(self) -> None:
        """Take in the body; return when the client has left."""
        while True:
            if self._size > _EARLY and not self._ended.is_set():
                await self._asked.wait()
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            if self._ended.is_set():
                continue
            part = message.get("body", b"")
            self._size += len(part)
            if self._size > self._limit:
                self._parts.clear()
                self._ended.set()
                continue
            self._parts.append(part)
            if not message.get("more_body", False):
                self._ended.set()

    @property
    def whole(self) -> bool:
        """All of it has come."""
        return self._ended.is_set()

    async def arrive(self) -> None:
        """Until all of it has come, while :meth:`until_gone` runs."""
        self._asked.set()
        await self._ended.wait()

    def take(self) -> bytes:
        """The body.

        Raises:
            BodyTooLargeError
        """
        if self._size > self._limit:
            raise _too_large(self._limit)
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"request body is larger than {limit} bytes: shorten it or raise ANTIPHON_MAX_BODY"
    )
