"""Leaving: no new turns, those in flight to their end."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon_server.router.errors import DrainingError

_ALWAYS = ("/health", "/ready", "/metrics", "/admin")
"""Who asks for these wants to know about a router that drains, too."""


class Drain:
    """Counts requests in flight. Once begun, new ones are refused."""

    def __init__(self) -> None:
        self.begun = False
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Refuse from now on."""
        self.begun = True

    async def idle(self) -> None:
        """Until nothing is in flight."""
        await self._idle.wait()

    def enter(self) -> None:
        """A request came in."""
        self.in_flight += 1
        self._idle.clear()

    def leave(self) -> None:
        """It is answered."""
        self.in_flight -= 1
        if not self.in_flight:
            self._idle.set()


class DrainGate:
    """In front of all routes."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_ALWAYS):
            await self._app(scope, receive, send)
            return
        if self._drain.begun:
            await _refuse(send, anthropic=scope["path"].startswith("/v1/messages"))
            return
        self._drain.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.leave()


async def _refuse(send: Send, *, anthropic: bool) -> None:
    error = DrainingError("this router is being stopped: send the request again, another takes it")
    fields = [*error.headers, ("content-type", "application/json")]
    body = error.body(anthropic=anthropic)
    headers = [(name.encode(), value.encode()) for name, value in fields]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
