"""A turn from the client's request to its recorded frontier: identify, plan, prefill, decode, record."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from antiphon_server.protocol import Handle, seal_of
from antiphon_server.router.conversations import Visit
from antiphon_server.router.decode import Decode
from antiphon_server.router.errors import BadRequestError, RouterError, UnavailableError
from antiphon_server.router.exchange import Answer, LegFailedError, RejectedError
from antiphon_server.router.frontier import Frontier
from antiphon_server.router.identity import identify
from antiphon_server.router.legs import MalformedBodyError, Surface, read_ask
from antiphon_server.router.placement import Place
from antiphon_server.router.plan import Path, Plan, Reason, plan
from antiphon_server.router.prefill import Prefill, Prefilled
from antiphon_server.router.reply import Header, Reply
from antiphon_server.router.request import TurnRequest
from antiphon_server.router.state import State
from antiphon_server.router.tenants import Tenant
from antiphon_server.router.workers import Worker

PATHS: dict[Surface, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
REUSE_HEADER = "x-antiphon-reuse"


class Turns:
    """Serves turns."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._prefill = Prefill(state)
        self._decode = Decode(state)

    async def serve(
        self, surface: Surface, data: bytes, headers: Mapping[str, str], reply: Reply, tenant: Tenant
    ) -> None:
        """One turn, from body to the end of the reply.

        Raises:
            RouterError: nothing has gone to the client.
        """
        state = self._state
        try:
            ask = read_ask(surface, data)
        except MalformedBodyError as error:
            raise BadRequestError(str(error)) from error
        identity = identify(ask.named, headers, tenant.name)
        request = TurnRequest(ask, identity, PATHS[surface], headers, state.clock())
        with state.conversations.visit(identity) as visit:
            try:
                await self._attempt(request, visit, reply)
            except RejectedError as rejected:
                await _answer(reply, request, rejected.answer)
            except LegFailedError as failure:
                if isinstance(failure.cause, RouterError):
                    raise failure.cause from failure
                await _answer(reply, request, failure.cause)
            except asyncio.CancelledError:
                state.metrics.gone.labels(visit.phase).inc()
                raise
            finally:
                if identity.final and identity.key is not None:
                    await state.conversations.close(identity.tenant, identity.key.conversation)

    async def _attempt(self, request: TurnRequest, visit: Visit, reply: Reply) -> None:
        place = self._state.placement.of(visit.key)
        decode = self._state.placement.choose(self._state.workers.decode, place.decode)
        if decode is None:
            raise UnavailableError("no decode engine is up: try again soon")
        try:
            await self._once(request, visit, reply, place, decode, again=False)
        except LegFailedError as failure:
            # Decode failed before the first byte. Prefill's handle may be spent, so the turn starts afresh.
            if reply.started or not isinstance(failure, _DecodeFailedError):
                raise
            other = self._state.placement.choose(self._state.workers.decode, None, avoid=(decode.url,))
            if other is None:
                raise
            self._state.metrics.retries.labels("decode").inc()
            request.log("decode.retried", worker=decode.url, cause=str(failure.cause))
            await self._once(request, visit, reply, place, other, again=True)

    async def _once(
        self, request: TurnRequest, visit: Visit, reply: Reply, place: Place, decode: Worker, *, again: bool
    ) -> None:
        alone = request.ask.alone
        prefill = None
        if alone is None:
            prefill = self._state.placement.choose(self._state.workers.prefill, place.prefill)
        if prefill is None:
            chosen = Plan(Path.COLD, alone or Reason.UNHEALTHY)
            await self._decode_leg(request, visit, reply, decode, chosen, None)
            return
        chosen, frontier = await self._plan(visit, prefill, decode, again)
        visit.phase = "pull" if chosen.path is Path.REUSE else "prefill"
        try:
            prefilled = await self._prefill.run(request, prefill, chosen, frontier)
        except LegFailedError:
            if any(worker.healthy for worker in self._state.workers.prefill):
                raise
            chosen = Plan(Path.COLD, Reason.UNHEALTHY)
            await self._decode_leg(request, visit, reply, decode, chosen, None)
            return
        await self._decode_leg(request, visit, reply, decode, prefilled.plan, prefilled)

    async def _plan(
        self, visit: Visit, prefill: Worker, decode: Worker, again: bool
    ) -> tuple[Plan, Frontier | None]:
        state = self._state
        if not state.settings.reuse:
            return Plan(Path.COLD, Reason.OFF), None
        if visit.key is None:
            return Plan(Path.COLD, Reason.ANONYMOUS), None
        if again:  # a frontier that is there now is another turn's
            return Plan(Path.COLD, Reason.FAILED), None
        frontier = await state.store.take(visit.key)
        known = state.placement.of(visit.key) != Place()
        holder = state.workers.find(frontier.worker) if frontier is not None else None
        chosen = plan(
            frontier,
            absent=Reason.BUSY if visit.company else Reason.LOST if known else Reason.FIRST,
            holder=holder.state if holder is not None else None,
            prefill=prefill.state,
            decode=decode.state,
            now=state.clock(),
            margin=state.settings.lease_margin,
        )
        if chosen.path is Path.COLD and frontier is not None:
            state.leases.release_frontier(frontier)
            frontier = None
        return chosen, frontier

    async def _decode_leg(
        self,
        request: TurnRequest,
        visit: Visit,
        reply: Reply,
        decode: Worker,
        chosen: Plan,
        prefilled: Prefilled | None,
    ) -> None:
        state = self._state
        visit.phase = "decode"
        matched = prefilled.matched if prefilled is not None else 0
        pulled = prefilled.pulled if prefilled is not None else 0

        def first_byte() -> None:
            visit.phase = "stream"
            state.metrics.turn(chosen, matched, pulled, state.clock() - request.started)

        reply.on_first_byte(first_byte)
        epoch = decode.epoch
        captured = False

        async def record(handle: Handle) -> None:
            nonlocal captured
            captured = True
            await self._record(request, visit, decode, epoch, prefilled, handle)

        headers: list[Header] = [
            (REUSE_HEADER, f"path={chosen.path}; matched={matched}; reason={chosen.reason}"),
            ("x-request-id", request.id),
        ]
        filled = prefilled.filled if prefilled is not None else None
        try:
            await self._decode.run(request, decode, filled, reply, headers, record)
        except (LegFailedError, RejectedError) as error:
            if prefilled is not None and (isinstance(error, RejectedError) or error.over):
                self._prefill.give_up(prefilled)
            if isinstance(error, LegFailedError):
                raise _DecodeFailedError(error.cause, over=error.over) from error
            raise
        if filled is not None:
            state.metrics.handles.labels("captured" if captured else "missing").inc()

    async def _record(
        self,
        request: TurnRequest,
        visit: Visit,
        decode: Worker,
        epoch: str | None,
        prefilled: Prefilled | None,
        handle: Handle,
    ) -> None:
        state = self._state
        lease = handle.get("remote_request_id")
        seal = seal_of(handle)
        if not isinstance(lease, str):
            return
        reusable = decode.reuse and any(worker.reuse for worker in state.workers.prefill)
        keep = state.settings.reuse and reusable and not (visit.closed or request.identity.final)
        if not keep or visit.key is None or seal is None or epoch is None or epoch != decode.epoch:
            state.leases.release(decode, lease)
            return
        now = state.clock()
        deadline = now + state.leases.granted(decode)
        encoded = msgspec.json.encode(handle)
        frontier = Frontier(visit.key, encoded, lease, decode.url, epoch, seal.tokens, deadline, now)
        await state.conversations.record(visit, frontier)
        prefill_url = prefilled.worker.url if prefilled is not None else None
        state.placement.remember(visit.key, Place(prefill_url, decode.url))


class _DecodeFailedError(LegFailedError):
    """A failed decode leg, as against a failed prefill leg, which has been retried already."""


async def _answer(reply: Reply, request: TurnRequest, answer: Answer) -> None:
    reply.on_first_byte(None)
    headers: list[Header] = [("content-type", answer.content_type), ("x-request-id", request.id)]
    if answer.retry_after is not None:
        headers.append(("retry-after", answer.retry_after))
    await reply.whole(answer.status, headers, answer.body)
