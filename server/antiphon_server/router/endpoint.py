"""The endpoint of a turn: reads the body, watches for the client's leaving, serves, refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping

from starlette.types import Receive, Scope, Send

from antiphon_server.router.errors import BodyTooLargeError, RouterError
from antiphon_server.router.legs import Surface
from antiphon_server.router.reply import Reply
from antiphon_server.router.settings import RouterSettings
from antiphon_server.router.tenants import Tenants
from antiphon_server.router.turn import Turns

log = logging.getLogger(__name__)


class TurnEndpoint:
    """ASGI endpoint of one surface: reads the body, watches for the client's leaving, serves the turn."""

    def __init__(self, turns: Turns, settings: RouterSettings, surface: Surface, tenants: Tenants) -> None:
        self._tenants = tenants
        self._turns = turns
        self._settings = settings
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        reply = Reply(send)
        try:
            tenant = self._tenants.of(headers)
            body = await read_body(receive, headers, self._settings.max_body)
            if body is None:
                return
            await self._until_gone(receive, self._turns.serve(self._surface, body, headers, reply, tenant))
        except RouterError as error:
            await _refuse(reply, error)
        except Exception:
            log.exception("turn.crashed")
            await _refuse(reply, RouterError("the router failed: its log has the cause"))

    async def _until_gone(self, receive: Receive, turn: Awaitable[None]) -> None:
        """Serve the turn; cancel it when the client leaves."""
        serving = asyncio.ensure_future(turn)
        watching = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                serving.cancel()
                await asyncio.wait({serving})
            if not serving.cancelled():
                serving.result()
        finally:
            watching.cancel()
            if not serving.done():
                serving.cancel()


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes | None:
    """None if the client left meanwhile."""
    declared = headers.get("content-length", "0")
    too_large = BodyTooLargeError(
        f"request body is larger than {limit} bytes: shorten it or raise ANTIPHON_MAX_BODY"
    )
    if declared.isdigit() and int(declared) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(reply: Reply, error: RouterError) -> None:
    if reply.started:
        await reply.write(error.event(), last=True)
        return
    await reply.whole(error.status, [*error.headers, ("content-type", "application/json")], error.body())
