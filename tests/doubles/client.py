"""A client of an ASGI application, in its process: it may leave, and it may stop to read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message


class Call:
    """One request, running. ``status``: None until the head of the reply came. ``finished``: the reply is
    whole. ``gone``: the client has left."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.finished = False
        self._sent = False
        self._body = body
        self._over = asyncio.Event()
        self._left = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()
        given = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        raw_path, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": raw_path,
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("utf-8")) for name, value in given.items()],
            "client": ("10.0.0.9", 50000),
            "server": ("router", 8000),
            "state": {},
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    @property
    def gone(self) -> bool:
        return self._left.is_set()

    @property
    def reads(self) -> bool:
        return self._reads.is_set()

    def leave(self) -> None:
        """Close the connection."""
        self._left.set()
        self._over.set()
        self._reads.set()

    def read(self, on: bool) -> None:
        """Stop reading, or go on."""
        if on or self.gone:
            self._reads.set()
        else:
            self._reads.clear()

    async def _receive(self) -> Message:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._reads.wait()
        if self.gone:
            return
        if message["type"] == "http.response.start":
            assert self.status is None, "a second head"
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            return
        assert self.status is not None, "a body before the head"
        assert not self.finished, "a body after the end"
        self.body += message.get("body", b"")
        if not message.get("more_body", False):
            self.finished = True
            self._over.set()
