"""The endpoint of a turn: admits it, reads its body, watches for the client's leaving, serves, refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

from antiphon_server.router.errors import RouterError
from antiphon_server.router.gate.gate import Caller, caller_of, refuse
from antiphon_server.router.gate.line import take_line
from antiphon_server.router.legs import Surface
from antiphon_server.router.state import State
from antiphon_server.router.turn.inbox import Inbox
from antiphon_server.router.turn.reply import Reply
from antiphon_server.router.turn.turn import Turns

log = logging.getLogger(__name__)


class TurnEndpoint:
    """ASGI endpoint of one surface. Bodies are read once their turn is admitted, so that those that wait do
    not fill the memory."""

    def __init__(self, turns: Turns, state: State, surface: Surface) -> None:
        self._turns = turns
        self._state = state
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = caller_of(scope)
        line = take_line(scope)
        reply = Reply(send, line)
        try:
            settings = self._state.settings
            inbox = Inbox(receive, caller.headers, settings.max_body, settings.body_timeout, line)
            await self._until_gone(inbox, caller, reply)
        except RouterError as error:
            await self._refuse(reply, error, scope["path"])
        except Exception:
            log.exception("turn.crashed")
            await self._refuse(reply, RouterError("the router failed: its log has the cause"), scope["path"])
        finally:
            if line is not None:
                line.let_go()

    async def _until_gone(self, inbox: Inbox, caller: Caller, reply: Reply) -> None:
        """Serve the turn; cancel it when the client leaves."""
        serving = asyncio.current_task()
        assert serving is not None
        left = False

        def leave() -> None:
            nonlocal left
            left = True
            serving.cancel()

        inbox.watch(leave)
        try:
            await self._serve(inbox, caller, reply)
        except asyncio.CancelledError:
            if not left or serving.uncancel():
                raise
        finally:
            inbox.unwatch()

    async def _serve(self, inbox: Inbox, caller: Caller, reply: Reply) -> None:
        phase = "queue"
        try:
            async with self._state.admission.admit(caller.tenant):
                phase = "body"
                body = await inbox.body()
                phase = ""  # the turn counts its own
                await self._turns.serve(self._surface, body, caller.headers, reply, caller.tenant)
        except asyncio.CancelledError:
            if phase:
                self._state.metrics.gone.labels(phase).inc()
            raise

    async def _refuse(self, reply: Reply, error: RouterError, path: str) -> None:
        if reply.started:
            await reply.write(error.event(self._surface), last=True)
        else:
            await refuse(reply, error, path)


async def read_body(
    receive: Receive,
    headers: Mapping[str, str],
    limit: int,
    *,
    timeout: float = 120.0,  # noqa: ASYNC109
) -> bytes | None:
    """The body of a request that is no turn, up to ``limit`` bytes in ``timeout`` seconds; None if the client
    left meanwhile.

    Raises:
        BodyTooLargeError, EncodedBodyError, RequestTimeoutError
    """
    inbox = Inbox(receive, headers, limit, timeout)
    reading = asyncio.create_task(inbox.body())
    inbox.watch(reading.cancel)
    try:
        await asyncio.wait({reading})
        return None if reading.cancelled() else reading.result()
    finally:
        inbox.unwatch()
        reading.cancel()
