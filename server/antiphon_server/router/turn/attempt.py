"""One attempt at a turn: take the frontier, place, plan, prefill, decode, record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from antiphon_server.protocol import Handle, Seal, seal_of
from antiphon_server.router.errors import UnavailableError
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.keep.conversations import Visit
from antiphon_server.router.legs import append_body, decode_body
from antiphon_server.router.plan.extent import extent_of
from antiphon_server.router.plan.forecast import growth, length
from antiphon_server.router.plan.plan import Plan
from antiphon_server.router.plan.reasons import Path, Reason
from antiphon_server.router.state import State
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.store.packed import pack
from antiphon_server.router.turn.beginning import Begun
from antiphon_server.router.turn.decision import Decision, Step
from antiphon_server.router.turn.decode import Decode
from antiphon_server.router.turn.exchange import LegFailedError
from antiphon_server.router.turn.prefill import Prefill, Prefilled
from antiphon_server.router.turn.reply import Header, Reply
from antiphon_server.router.turn.request import TurnRequest

REUSE_HEADER = "x-antiphon-reuse"


@dataclass(slots=True)
class _Told:
    """What is known of a turn when it has been served. ``tokens``: of its prompt, 0 if unknown. ``handle``:
    what became of decode's. ``answer``: its tokens of which decode has the KV."""

    tokens: int
    matched: int = 0
    pulled: int = 0
    ttft: float = 0.0
    handle: str | None = "missing"
    answer: int | None = None


class Attempt:
    """Serves a turn once. Whatever it has taken is burned, recorded or released when it ends."""

    def __init__(
        self,
        state: State,
        prefill: Prefill,
        decode: Decode,
        request: TurnRequest,
        visit: Visit,
        reply: Reply,
    ) -> None:
        self._state = state
        self._prefill = prefill
        self._decode = decode
        self._request = request
        self._visit = visit
        self._reply = reply
        self._decision = Decision(state, visit.key, request.forced)
        self._frontier: Frontier | None = None
        self._held: int | None = None

    async def run(self, failed: Collection[str], *, again: bool) -> None:
        """``failed``: names of engines that failed in this turn. ``again``: not the first attempt.

        Raises:
            LegFailedError: nothing has gone to the client.
            RejectedError: the client's fault.
            UnavailableError: no decode engine is up.
        """
        absent = await self._take(again)
        try:
            step = self._decide(failed, absent)
            if step.prefill is None:
                await self._straight(step)
            else:
                await self._through_prefill(step, step.prefill)
        finally:
            self._release_frontier()

    async def _take(self, again: bool) -> Plan | None:
        """Take the frontier. Returns the plan of a turn that cannot have one."""
        request, visit, settings = self._request, self._visit, self._state.settings
        if request.ask.alone is not None:
            stored = request.ask.alone is Reason.STORED
            return Plan(Path.APPEND if stored else Path.COLD, request.ask.alone)
        if visit.key is None:
            return Plan(Path.COLD, Reason.ANONYMOUS if settings.keeps else Reason.OFF)
        if not settings.keeps:
            return Plan(Path.COLD, Reason.OFF)
        if again:  # a frontier that is there now is another turn's
            return Plan(Path.COLD, Reason.FAILED)
        self._frontier = await self._state.conversations.take(visit)
        self._held = self._frontier.tokens if self._frontier is not None else None
        return None

    def _decide(self, failed: Collection[str], given: Plan | None) -> Step:
        frontier, request = self._frontier, self._request
        turn = None
        if frontier is not None:
            turn = growth(frontier, request.ask.body, self._state.rates.per_byte)
        step = self._decision.step(
            frontier,
            turn,
            given=given,
            alone=request.ask.alone is not None,
            holder=self._holder_of_response() if request.forced is None else None,
            company=self._visit.company,
            failed=failed,
        )
        if step.plan.path is Path.COLD:
            self._release_frontier()
        return step

    def _holder_of_response(self) -> Worker | None:
        """The engine that has the response this turn builds on: no other can serve it. None if it is not
        known."""
        stored = self._state.responses.find(self._request.ask.previous)
        holder = self._state.workers.find(stored.worker) if stored is not None else None
        if holder is not None and not holder.healthy:
            raise UnavailableError("the decode engine that has this response is not up: try again soon")
        return holder

    async def _straight(self, step: Step) -> None:
        """Decode alone: it has the prompt's beginning, or no prefill engine can help."""
        state, request = self._state, self._request
        tokens = step.turn.total if step.turn is not None else 0
        self._decision.charge(step)
        rates, name, streams = state.rates, step.decode.name, step.decode.in_flight

        def begun(leg: Begun) -> None:
            own = rates.own(name, spell)
            rates.end(name, spell)
            self._release_frontier()  # the blocks are this leg's own now
            if hands_back and own is not None and leg.first is not None and leg.prompt is not None:
                self._decision.saw_append(
                    step,
                    spell,
                    tokens=leg.prompt.tokens,
                    cached=leg.prompt.cached,
                    streams=streams,
                    seconds=min(own, leg.seconds),
                )

        hands_back = request.ask.alone in (None, Reason.STORED)
        body = append_body(request.ask) if hands_back else decode_body(request.ask, None)
        new = step.turn.new if step.turn is not None else 0
        spell = rates.begin(name, new)
        try:
            await self._decode_leg(step, body, None, begun, tokens)
        finally:
            rates.end(name, spell)

    async def _through_prefill(self, step: Step, worker: Worker) -> None:
        self._state.placement.claim(worker, step.decode)
        prefilled = await self._filled(step, worker)
        if prefilled is None:
            unhealthy = Step(Plan(Path.COLD, Reason.UNHEALTHY), None, step.decode, step.turn)
            await self._straight(unhealthy)
            return
        state = self._state
        if prefilled.filled is not None:
            state.handles.look(prefilled.filled.remote_host, worker, (step.decode,))
        alone, streams = False, 0

        def begun(leg: Begun) -> None:
            state.placement.pairs.succeeded(worker, step.decode)
            if alone and leg.first is not None and prefilled.tokens:
                self._decision.saw_handed_over(
                    step, tokens=prefilled.tokens, streams=streams, seconds=leg.seconds
                )

        body = decode_body(self._request.ask, prefilled.filled)
        alone, streams = not state.rates.ahead(step.decode.name), step.decode.in_flight
        filled_step = Step(prefilled.plan, worker, step.decode, step.turn)
        try:
            await self._decode_leg(filled_step, body, prefilled, begun, prefilled.tokens)
        except LegFailedError as error:
            if error.may_be_transfer and prefilled.filled is not None:
                state.placement.pairs.failed(worker, step.decode, state.clock())
            raise

    def _handle(self, frontier: Frontier) -> Handle | None:
        """What prefill is to be sent; None where another router's version wrote it in a way of its own."""
        try:
            return frontier.params()
        except ValueError as error:
            self._request.log("handle.unreadable", cause=str(error))
            return None

    async def _filled(self, step: Step, worker: Worker) -> Prefilled | None:
        """Run the prefill leg; None when it failed and no other prefill engine is up."""
        state, frontier, request, chosen = self._state, self._frontier, self._request, step.plan
        handle = self._handle(frontier) if chosen.path is Path.REUSE and frontier is not None else None
        try:
            if frontier is not None and handle is not None:
                self._visit.phase = "pull"
                self._frontier = None  # burned
                new = step.turn.new if step.turn is not None else 0
                prefilled = await self._prefill.reuse(request, worker, chosen, frontier, handle, new)
            else:
                if chosen.path is Path.REUSE:
                    chosen = Plan(Path.COLD, Reason.FOREIGN)
                    self._release_frontier()
                self._visit.phase = "prefill"
                new = self._decision.computed_cold(step.turn, worker, self._length)
                prefilled = await self._prefill.cold(request, worker, chosen, new)
        except LegFailedError as failure:
            if any(other.healthy for other in state.workers.prefill):
                raise
            request.log("prefill.all_down", cause=str(failure.cause))
            return None
        local = max(0, prefilled.matched - prefilled.pulled)
        self._decision.saw_local(step.turn, worker, tokens=prefilled.tokens, local=local)
        return prefilled

    def _length(self) -> int:
        """Tokens of the prompt, by its bytes."""
        return length(self._request.ask.body, self._state.rates.per_byte)

    async def _decode_leg(
        self,
        step: Step,
        body: bytes,
        prefilled: Prefilled | None,
        on_begun: Callable[[Begun], None],
        tokens: int,
    ) -> None:
        state, visit, request = self._state, self._visit, self._request
        expected = tokens + state.conversations.answers.most(request.ask.answer_limit)
        try:
            await state.conversations.make_room(visit, step.decode, expected)
        except asyncio.CancelledError:
            if prefilled is not None:
                self._prefill.give_up(prefilled)
            raise
        visit.phase = "decode"
        epoch = step.decode.epoch
        told = _Told(tokens)
        if prefilled is not None:
            told.matched, told.pulled = prefilled.matched, prefilled.pulled

        def head(leg: Begun) -> list[Header]:
            on_begun(leg)
            state.responses.keep(request.ask, request.identity, step.decode.name)
            if prefilled is None:
                told.matched = leg.prompt.cached if leg.prompt is not None else 0
                told.tokens = leg.prompt.tokens if leg.prompt is not None else 0
            self._reply.on_first_byte(first_byte)
            return [(REUSE_HEADER, self._outcome(step.plan, told)), ("x-request-id", request.id)]

        def first_byte() -> None:
            visit.phase = "stream"
            told.ttft = state.clock() - request.started
            if request.forced is None:
                state.metrics.turn(step.plan, told.matched, told.pulled, told.ttft)

        async def record(handle: Handle) -> None:
            seal = seal_of(handle)
            kept = await self._record(step, epoch, told.tokens, handle, seal)
            told.handle = "captured" if kept else None
            if seal is not None and 0 < told.tokens <= seal.tokens:
                told.answer = seal.tokens - told.tokens

        unread = None
        if prefilled is not None and prefilled.filled is not None:
            unread = partial(self._prefill.give_up, prefilled)
        await self._decode.run(
            request,
            step.decode,
            body,
            self._reply,
            head,
            record,
            visit.leave_behind,
            unread=unread,
        )
        expects_handle = unread is not None or step.plan.path is Path.APPEND
        if told.handle is not None and expects_handle and request.forced is None:
            state.metrics.handles.labels(told.handle).inc()
        if state.settings.turn_log and request.forced is None:
            request.served(
                path=step.plan.path,
                reason=step.plan.reason,
                declined=step.plan.declined,
                tokens=told.tokens,
                matched=told.matched,
                pulled=told.pulled,
                answer=told.answer,
                ttft=round(told.ttft, 6),
                seconds=round(state.clock() - request.started, 6),
                prefill=prefilled.worker.name if prefilled is not None else None,
                decode=step.decode.name,
            )

    def _outcome(self, chosen: Plan, told: _Told) -> str:
        """What the client is told. ``prompt`` and ``held``, tokens, only where they are known: from them it
        sees that its history has ceased to extend the last turn's."""
        said = f"path={chosen.path}; matched={told.matched}; reason={chosen.reason}"
        prompt = f"; prompt={told.tokens}" if told.tokens else ""
        held = f"; held={self._held}" if self._held is not None else ""
        return said + prompt + held

    async def _record(
        self, step: Step, epoch: str | None, prompt_tokens: int, handle: Handle, seal: Seal | None
    ) -> bool:
        """Keep the KV if it is to be kept. False: the handle lacks what that takes."""
        state, visit, decode = self._state, self._visit, step.decode
        lease = handle.get("remote_request_id")
        usable = state.handles.usable(lease, seal, decode)
        if not isinstance(lease, str):
            return usable
        state.handles.look(handle.get("remote_host"), decode, state.workers.prefill)
        reusable = decode.reuse and any(w.reuse for w in state.workers.prefill)
        gone = state.workers.find(decode.name) is not decode  # it left the fleet meanwhile
        over = gone or visit.closed or self._request.identity.final
        keep = state.settings.keeps and reusable and not over
        if not keep or visit.key is None or seal is None or epoch is None or epoch != decode.epoch:
            state.leases.release(decode, lease)
            return usable
        now = state.clock()
        frontier = Frontier(
            visit.key,
            pack(handle),
            lease,
            decode.name,
            epoch,
            seal.tokens,
            deadline=now + state.leases.granted(decode),
            idle_since=now,
            prompt_tokens=prompt_tokens,
            extent=extent_of(self._request.ask.body),
            began=self._request.started,
        )
        if frontier.extent is not None:
            state.rates.saw_prompt(prompt_tokens, frontier.extent.size)
        await state.conversations.record(visit, frontier)
        state.placement.remember(visit.key, self._decision.served(step, prompt_tokens))
        return usable

    def _release_frontier(self) -> None:
        frontier, self._frontier = self._frontier, None
        if frontier is not None:
            self._state.leases.release_frontier(frontier)
