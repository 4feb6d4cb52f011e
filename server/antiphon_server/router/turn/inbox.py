"""A request's body as it arrives, and the client's leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Receive

from antiphon_server.router.errors import (
    BodyTooLargeError,
    EncodedBodyError,
    RequestTimeoutError,
    RouterError,
)

_EARLY = 1024 * 1024
"""Bytes taken of a body before anybody has asked for it: most are whole then, so that its client's leaving
is seen, and a full queue of them is small."""


class Inbox:
    """``limit``: bytes. ``timeout``: seconds from asking for the body to its end.

    Raises:
        BodyTooLargeError: it announces more than ``limit``.
        EncodedBodyError: it is compressed.
    """

    def __init__(self, receive: Receive, headers: Mapping[str, str], limit: int, timeout: float) -> None:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in {"", "identity"}:
            raise EncodedBodyError("the request body is compressed: send it without Content-Encoding")
        self._receive = receive
        self._limit = limit
        declared = headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > limit:
            raise self._too_large()
        self._timeout = timeout
        self._parts: list[bytes] = []
        self._size = 0
        self._fault: RouterError | None = None
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
                self._fault = self._too_large()
                self._ended.set()
                continue
            self._parts.append(part)
            if not message.get("more_body", False):
                self._ended.set()

    def _give_up(self) -> None:
        if not self._ended.is_set():
            self._fault = RequestTimeoutError(
                f"the request's body did not arrive within {self._timeout:g} s: send it faster"
            )
            self._ended.set()

    def _too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"request body is larger than {self._limit} bytes: shorten it or raise ANTIPHON_MAX_BODY"
        )

    async def body(self) -> bytes:
        """The whole body, while :meth:`until_gone` runs. Once.

        Raises:
            BodyTooLargeError
            RequestTimeoutError: it does not end in time.
        """
        self._asked.set()
        late = asyncio.get_running_loop().call_later(self._timeout, self._give_up)
        try:
            await self._ended.wait()
        finally:
            late.cancel()
        if self._fault is not None:
            raise self._fault
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)
