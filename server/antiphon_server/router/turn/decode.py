"""The decode leg of a turn: its reply on the way to the client, and its handle on the way to the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from antiphon_server.protocol import Handle
from antiphon_server.router.errors import EngineFailedError
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.legs import is_object, strip
from antiphon_server.router.state import State
from antiphon_server.router.turn.beginning import Beginning, Begun
from antiphon_server.router.turn.exchange import Exchange, InFlight, LegFailedError, RejectedError
from antiphon_server.router.turn.relay import Relay
from antiphon_server.router.turn.reply import Header, Reply
from antiphon_server.router.turn.request import TurnRequest
from antiphon_server.router.upstream.connection import UpstreamError

Record = Callable[[Handle], Awaitable[None]]
Head = Callable[[Begun], list[Header]]
"""Called once when decode has begun to answer; gives the headers for the client."""
Behind = Callable[[asyncio.Task[None]], None]
"""Told of the task that sees a leg to its end after its client has left."""


class Decode:
    """Runs decode legs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._exchange = Exchange(state)

    async def run(
        self,
        request: TurnRequest,
        worker: Worker,
        body: bytes,
        reply: Reply,
        head: Head,
        record: Record,
        behind: Behind,
        *,
        handed_over: bool,
    ) -> None:
        """Decode, relay, and ``record`` the handle before the client sees the end. ``handed_over``: the body
        carries prefill's handle.

        Raises:
            LegFailedError: nothing has gone to the client, so the turn may be tried again from prefill on.
            RejectedError: the client's fault.
        """
        with InFlight(worker):
            begun = await self._begun(request, worker, body, behind, handed_over)
            try:
                headers = head(begun)
                if begun.first is not None:
                    await self._stream(request, worker, begun, begun.first, reply, headers, record)
                    return
            except BaseException:
                begun.leg.close()
                raise
            await self._whole(request, worker, begun, reply, headers, record, behind)

    async def _begun(
        self, request: TurnRequest, worker: Worker, body: bytes, behind: Behind, handed_over: bool
    ) -> Begun:
        leg = self._exchange.leg(
            worker,
            request,
            body,
            request_id=request.leg_id("d"),
            first=self._state.settings.decode_timeout,
            repeat=not handed_over,
        )
        beginning = Beginning(leg, worker, request.ask.surface, self._state.clock)
        try:
            return await beginning.begun()
        except asyncio.CancelledError:
            # Until its first byte decode may be in the middle of a pull, which a client that leaves must not
            # abort.
            if handed_over:
                behind(self._state.in_background(self._leave_when_begun(beginning, worker)))
            else:
                beginning.close()
            raise

    async def _whole(
        self,
        request: TurnRequest,
        worker: Worker,
        begun: Begun,
        reply: Reply,
        headers: list[Header],
        record: Record,
        behind: Behind,
    ) -> None:
        data = await self._read_shielded(worker, begun, behind)
        body, handle = strip(data, request.ask.token_ids)
        if handle is None and not is_object(body):
            worker.failed(self._state.clock())
            raise LegFailedError(EngineFailedError("the decode engine's reply is cut off"), worker, over=True)
        if handle is not None:
            await record(handle)
        await reply.whole(200, [*headers, ("content-type", begun.content_type)], body)

    async def _read_shielded(self, worker: Worker, begun: Begun, behind: Behind) -> bytes:
        if begun.response.complete:  # nothing to wait for, and so nothing to shield
            return await begun.leg.read()
        # Decode has finished and pinned its blocks when the head of a whole reply comes, and says in the body
        # which: that is read to its end though the client may leave.
        reading = asyncio.create_task(begun.leg.read())
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            behind(self._state.in_background(self._release_when_read(reading, worker)))
            raise

    async def _stream(
        self,
        request: TurnRequest,
        worker: Worker,
        begun: Begun,
        first: bytes,
        reply: Reply,
        headers: list[Header],
        record: Record,
    ) -> None:
        relay = Relay(request.ask.token_ids, request.ask.surface)
        await reply.start(
            200,
            [
                *headers,
                ("content-type", begun.content_type),
                ("cache-control", "no-cache"),
                ("x-accel-buffering", "no"),
            ],
        )

        def pass_on(chunk: bytes) -> bool:
            return relay.passes(chunk) and reply.pass_on(chunk)

        recorded = False
        chunk: bytes | None = first
        try:
            while chunk is not None:
                data = relay.feed(chunk)
                if relay.handle is not None and not recorded:
                    recorded = True
                    begun.leg.handle_came()
                    await record(relay.handle)
                if data:
                    await reply.write(data)
                chunk = await begun.response.chunk(pass_on)
        except asyncio.CancelledError:
            if not recorded:
                self._leave(begun, worker, relay)
            raise
        except UpstreamError as error:
            broken = begun.leg.broken(error)
            cause = str(error)
        else:
            broken = EngineFailedError("the decode engine failed: it ended its answer too early")
            cause = "the stream ended without its last event"
            if not relay.done:
                worker.failed(self._state.clock())
        if relay.done:
            await reply.write(relay.finish(), last=True)
            return
        request.log("decode.broke_off", worker=worker.url, cause=cause)
        await reply.write(relay.broken(broken), last=True)

    async def _leave_when_begun(self, beginning: Beginning, worker: Worker) -> None:
        """The client left before the first byte. A stream tells with it that the pull is over; a whole reply
        comes too late to tell, so that time must do."""
        with InFlight(worker):
            try:
                async with asyncio.timeout(self._state.settings.pull_grace):
                    begun = await beginning.begun()
            except (LegFailedError, RejectedError):
                return
            except (TimeoutError, asyncio.CancelledError) as end:
                beginning.close()
                if isinstance(end, asyncio.CancelledError):
                    raise
                return
            if begun.first is None:
                with contextlib.suppress(LegFailedError):
                    self._release(worker, strip(await begun.leg.read(), True)[1])
                return
            relay = Relay(token_ids=True)
            relay.feed(begun.first)
            self._leave(begun, worker, relay)

    async def _release_when_read(self, reading: asyncio.Task[bytes], worker: Worker) -> None:
        with contextlib.suppress(LegFailedError):
            self._release(worker, strip(await reading, True)[1])

    def _leave(self, begun: Begun, worker: Worker, relay: Relay) -> None:
        """Cancel decode. Should it have finished already, nobody will use its handle: if that has come it
        names what to release, on all surfaces; if it is on its way the leg's name has to do."""
        relay.feed(begun.response.buffered())
        self._release(worker, relay.handle)
        begun.leg.close()

    def _release(self, worker: Worker, handle: Handle | None) -> None:
        lease = handle.get("remote_request_id") if handle is not None else None
        self._state.leases.release(worker, lease if isinstance(lease, str) else None)
