"""The decode leg of a turn: its reply on the way to the client, and its handle on the way to the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from antiphon_server.protocol import Handle
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.legs import CutOffError, strip_whole
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
Unread = Callable[[], None]
"""Called when nobody reads, nor will, the KV that prefill handed over."""
Whole = tuple[bytes, Handle | None]
"""A whole reply for the client, and the handle that was in it."""
Behind = Callable[[asyncio.Task[None]], None]
"""Told of the task that sees a leg to its end after its client has left."""

_STRIP = partial(strip_whole, token_ids=True)


@contextlib.contextmanager
def _watched(unread: Unread | None) -> Iterator[None]:
    """Tell ``unread`` of a leg that failed and is known to be over."""
    try:
        yield
    except (LegFailedError, RejectedError) as error:
        if unread is not None and (isinstance(error, RejectedError) or error.over):
            unread()
        raise


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
        unread: Unread | None,
    ) -> None:
        """Decode, relay, and ``record`` the handle before the client sees the end. ``unread``: None where the
        body carries no handle of prefill's.

        Raises:
            LegFailedError: nothing has gone to the client, so the turn may be tried again from prefill on.
            RejectedError: the client's fault.
        """
        with InFlight(worker), _watched(unread):
            begun = await self._begun(request, worker, body, behind, unread)
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
        self, request: TurnRequest, worker: Worker, body: bytes, behind: Behind, unread: Unread | None
    ) -> Begun:
        leg = self._exchange.leg(
            worker,
            request,
            body,
            request_id=request.leg_id("d"),
            first=self._state.settings.decode_timeout,
            repeat=unread is None,
        )
        beginning = Beginning(leg, worker, request.ask.surface, self._state.clock)
        try:
            return await beginning.begun()
        except asyncio.CancelledError:
            # Until its first byte decode may be in the middle of a pull, which a client that leaves must not
            # abort.
            if unread is not None:
                behind(self._state.in_background(self._leave_when_begun(beginning, worker, unread)))
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
        body, handle = await self._read_shielded(request, worker, begun, behind)
        if handle is not None:
            await record(handle)
        await reply.whole(200, [*headers, ("content-type", begun.content_type)], body)

    async def _read_shielded(
        self, request: TurnRequest, worker: Worker, begun: Begun, behind: Behind
    ) -> Whole:
        parse = partial(strip_whole, token_ids=request.ask.token_ids)
        if begun.response.complete:  # nothing to wait for, and so nothing to shield
            return await begun.leg.read(parse)
        # Decode has finished and pinned its blocks when the head of a whole reply comes, and says in the body
        # which: that is read to its end though the client may leave.
        reading = asyncio.create_task(begun.leg.read(parse))
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
            if not relay.done:
                cut_off = CutOffError("its stream ended without the last event")
                broken = begun.leg.broken(cut_off)
                cause = str(cut_off)
        if relay.done:
            await reply.write(relay.finish(), last=True)
            return
        request.log("decode.broke_off", worker=worker.url, cause=cause)
        await reply.write(relay.broken(broken), last=True)

    async def _leave_when_begun(self, beginning: Beginning, worker: Worker, unread: Unread) -> None:
        """The client left before the first byte. A stream tells with it that the pull is over; a whole reply
        comes too late to tell, so that time must do."""
        with InFlight(worker):
            try:
                async with asyncio.timeout(self._state.settings.pull_grace):
                    with _watched(unread):
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
                    self._release(worker, (await begun.leg.read(_STRIP))[1])
                return
            relay = Relay(token_ids=True)
            relay.feed(begun.first)
            self._leave(begun, worker, relay)

    async def _release_when_read(self, reading: asyncio.Task[Whole], worker: Worker) -> None:
        with contextlib.suppress(LegFailedError):
            self._release(worker, (await reading)[1])

    def _leave(self, begun: Begun, worker: Worker, relay: Relay) -> None:
        """Cancel decode. Should it have finished already, nobody will use its handle: if that has come it
        names what to release, on all surfaces; if it is on its way the leg's name has to do."""
        relay.feed(begun.response.buffered())
        self._release(worker, relay.handle)
        begun.leg.close()

    def _release(self, worker: Worker, handle: Handle | None) -> None:
        lease = handle.get("remote_request_id") if handle is not None else None
        self._state.leases.release(worker, lease if isinstance(lease, str) else None)
