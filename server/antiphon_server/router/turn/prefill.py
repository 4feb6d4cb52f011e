"""The prefill leg of a turn: cold, or with decode's handle, which is spent then."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from antiphon_server.protocol import Handle, Match
from antiphon_server.router.errors import EngineFailedError, EngineSilentError
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.legs import Filled, check_whole, prefill_body, read_filled
from antiphon_server.router.plan.backlog import Spell
from antiphon_server.router.plan.plan import Plan, outcome
from antiphon_server.router.state import State
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.turn.decision import saw_prefill
from antiphon_server.router.turn.exchange import Exchange, InFlight, LegFailedError, RejectedError
from antiphon_server.router.turn.request import TurnRequest


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt's KV is on ``worker``, named by ``filled`` (None: the engine offers no hand-over).
    ``tokens``: length of the prompt, 0 if unknown. ``matched``: those it did not compute; ``pulled``: those
    of them that came from decode."""

    worker: Worker
    filled: Filled | None
    plan: Plan
    tokens: int
    matched: int
    pulled: int


class Prefill:
    """Runs prefill legs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._exchange = Exchange(state)

    def give_up(self, prefilled: Prefilled) -> None:
        """Nobody will read this KV: let prefill free it."""
        if prefilled.filled is not None:
            self._state.leases.release(prefilled.worker, prefilled.filled.lease)

    async def cold(self, request: TurnRequest, worker: Worker, plan: Plan, expected_new: int) -> Prefilled:
        """Compute the whole prompt. ``expected_new``: tokens that this is thought to be.

        Raises:
            LegFailedError, RejectedError
        """
        limit = self._state.settings.prefill_timeout
        rates = self._state.rates
        spell = rates.begin(worker.name, expected_new)
        try:
            body = prefill_body(request.ask, None)
            filled = await self._leg(request, worker, body, first=limit, repeat=True)
            own = rates.own(worker.name, spell)
        finally:
            rates.end(worker.name, spell)
        prefilled = _prefilled(worker, plan, filled)
        self._learn(prefilled, own, spell)
        return prefilled

    async def reuse(
        self,
        request: TurnRequest,
        worker: Worker,
        plan: Plan,
        frontier: Frontier,
        handle: Handle,
        expected_new: int,
    ) -> Prefilled:
        """Pull what decode holds, compute the rest. ``handle``: the frontier's; it is burned from here on. A
        leg that pulls is never cancelled (an engine may crash in the middle of a transfer,
        https://github.com/vllm-project/vllm/issues/46240), so it runs apart from its client.

        Raises:
            LegFailedError, RejectedError
        """
        limit = self._state.settings.prefill_timeout
        body = prefill_body(request.ask, handle)
        if request.forced is None:
            self._state.metrics.handles.labels("burned").inc()
        leg = asyncio.create_task(self._leg(request, worker, body, first=2 * limit, repeat=False))
        with self._state.rates.computing(worker.name, expected_new) as spell:
            try:
                done, _ = await asyncio.wait({leg}, timeout=limit)
            except asyncio.CancelledError:
                self._state.in_background(self._settle_later(leg, worker, frontier))
                raise
            own = self._state.rates.own(worker.name, spell)
        if not done:
            self._state.in_background(self._settle_later(leg, worker, frontier))
            silent = EngineSilentError(f"the prefill engine kept silent for {limit:g} s")
            raise LegFailedError(silent, worker, over=False)
        try:
            filled = leg.result()
        except (LegFailedError, RejectedError) as error:
            self._settle(frontier, over=isinstance(error, RejectedError) or error.over)
            raise
        if filled is None or filled.seal is None:
            # Nothing says that the handle was checked, so what was filled may be another prompt's.
            self._state.leases.release(worker, filled.lease if filled is not None else None)
            self._settle(frontier, over=True)
            unsealed = EngineFailedError("the prefill engine did not seal its handle")
            raise LegFailedError(unsealed, worker, over=True)
        prefilled = _prefilled(worker, plan, filled)
        self._note_transfer(worker, frontier, filled.seal.match)
        self._learn(prefilled, own, spell)
        if not prefilled.pulled:  # a pull lets decode free the blocks by itself
            self._state.leases.release_frontier(frontier)
        return prefilled

    async def _leg(
        self, request: TurnRequest, worker: Worker, body: bytes, *, first: float, repeat: bool
    ) -> Filled | None:
        leg = self._exchange.leg(
            worker, request, body, request_id=request.leg_id("p"), first=first, repeat=repeat
        )
        with InFlight(worker):
            try:
                return await leg.read(_read)
            except asyncio.CancelledError:
                leg.close()
                raise

    def _learn(self, prefilled: Prefilled, own: float | None, spell: Spell) -> None:
        if own is None or prefilled.tokens <= 0:
            return
        saw_prefill(
            self._state,
            prefilled.worker,
            spell,
            tokens=prefilled.tokens,
            matched=prefilled.matched,
            pulled=prefilled.pulled,
            seconds=own,
        )

    def _note_transfer(self, worker: Worker, frontier: Frontier, match: Match) -> None:
        holder = self._state.workers.find(frontier.worker)
        if holder is None:
            return
        now = self._state.clock()
        if match is Match.FAILED:
            self._state.placement.pairs.failed(worker, holder, now)
        elif match in {Match.FULL, Match.CUT}:
            self._state.placement.pairs.succeeded(worker, holder)

    async def _settle_later(
        self, leg: asyncio.Task[Filled | None], worker: Worker, frontier: Frontier
    ) -> None:
        """The client left, or went on without this leg: when it ends, free what it filled and what it
        read."""
        try:
            filled = await leg
        except (LegFailedError, RejectedError) as error:
            self._settle(frontier, over=isinstance(error, RejectedError) or error.over)
            return
        if filled is not None:
            self._state.leases.release(worker, filled.lease)
        self._settle(frontier, over=True)

    def _settle(self, frontier: Frontier, *, over: bool) -> None:
        if over:
            self._state.leases.release_frontier(frontier)
        else:  # prefill may still be reading: freed blocks would be refilled under it
            self._state.leases.abandon(frontier)


def _read(data: bytes) -> Filled | None:
    filled = read_filled(data)
    if filled is None:
        check_whole(data)
    return filled


def _prefilled(worker: Worker, plan: Plan, filled: Filled | None) -> Prefilled:
    tokens = filled.tokens if filled is not None else 0
    seal = filled.seal if filled is not None else None
    if seal is None:
        return Prefilled(worker, filled, plan, tokens, 0, 0)
    return Prefilled(worker, filled, outcome(plan, seal.match), tokens, seal.matched or 0, seal.pulled or 0)
