"""The prefill leg of a turn: with decode's handle at most once, and cold on another engine at most once
after that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from antiphon_server.router.errors import EngineFailedError, EngineSilentError
from antiphon_server.router.exchange import Exchange, InFlight, LegFailedError, RejectedError
from antiphon_server.router.frontier import Frontier
from antiphon_server.router.legs import Filled, prefill_body, read_filled
from antiphon_server.router.plan import Path, Plan, Reason, outcome
from antiphon_server.router.request import TurnRequest
from antiphon_server.router.state import State
from antiphon_server.router.workers import Worker


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The prompt's KV is on ``worker``, named by ``filled`` (None: the engine offers no hand-over).
    ``matched``: tokens it did not compute; ``pulled``: those of them that came from decode."""

    worker: Worker
    filled: Filled | None
    plan: Plan
    matched: int
    pulled: int


class Prefill:
    """Runs prefill legs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._exchange = Exchange(state)

    async def run(
        self, request: TurnRequest, worker: Worker, plan: Plan, frontier: Frontier | None
    ) -> Prefilled:
        """Fill the prompt's KV as planned, or cold where that fails.

        Raises:
            LegFailedError: all attempts failed.
            RejectedError: the client's fault.
        """
        try:
            if plan.path is Path.REUSE and frontier is not None:
                return await self._reuse(request, worker, plan, frontier)
            return await self._cold(request, worker, plan)
        except LegFailedError as failure:
            other = self._state.placement.choose(self._state.workers.prefill, None, avoid=(worker.url,))
            if other is None:
                raise
            self._state.metrics.retries.labels("prefill").inc()
            request.log("prefill.retried", worker=worker.url, cause=str(failure.cause))
            if plan.path is Path.REUSE:
                plan = Plan(Path.COLD, Reason.FAILED)
            return await self._cold(request, other, plan)

    def give_up(self, prefilled: Prefilled) -> None:
        """Nobody will read this KV: let prefill free it."""
        if prefilled.filled is not None:
            self._state.leases.release(prefilled.worker, prefilled.filled.lease)

    async def _cold(self, request: TurnRequest, worker: Worker, plan: Plan) -> Prefilled:
        limit = self._state.settings.prefill_timeout
        data = await self._leg(request, worker, prefill_body(request.ask, None), first=limit, repeat=True)
        return self._prefilled(worker, plan, read_filled(data))

    async def _reuse(self, request: TurnRequest, worker: Worker, plan: Plan, frontier: Frontier) -> Prefilled:
        """The handle is burned from here on. A leg that pulls is never cancelled (an engine may crash in
        the middle of a transfer, https://github.com/vllm-project/vllm/issues/46240), so it runs apart from
        its client."""
        limit = self._state.settings.prefill_timeout
        body = prefill_body(request.ask, frontier.params())
        self._state.metrics.handles.labels("burned").inc()
        leg = asyncio.create_task(self._leg(request, worker, body, first=2 * limit, repeat=False))
        try:
            done, _ = await asyncio.wait({leg}, timeout=limit)
        except asyncio.CancelledError:
            self._state.in_background(self._settle_later(leg, worker, frontier))
            raise
        if not done:
            self._state.in_background(self._settle_later(leg, worker, frontier))
            raise LegFailedError(
                EngineSilentError(f"the prefill engine kept silent for {limit:g} s"), over=False
            )
        try:
            filled = read_filled(leg.result())
        except (LegFailedError, RejectedError) as error:
            self._settle(frontier, over=isinstance(error, RejectedError) or error.over)
            raise
        if filled is None or filled.seal is None:
            # Nothing says that the handle was checked, so what was filled may be another prompt's.
            self._state.leases.release(worker, filled.lease if filled is not None else None)
            self._settle(frontier, over=True)
            raise LegFailedError(EngineFailedError("the prefill engine did not seal its handle"), over=True)
        prefilled = self._prefilled(worker, plan, filled)
        if not prefilled.pulled:  # a pull lets decode free the blocks by itself
            self._state.leases.release_frontier(frontier)
        return prefilled

    def _prefilled(self, worker: Worker, plan: Plan, filled: Filled | None) -> Prefilled:
        seal = filled.seal if filled is not None else None
        if seal is None:
            return Prefilled(worker, filled, plan, 0, 0)
        return Prefilled(worker, filled, outcome(plan, seal.match), seal.matched or 0, seal.pulled or 0)

    async def _leg(
        self, request: TurnRequest, worker: Worker, body: bytes, *, first: float, repeat: bool
    ) -> bytes:
        with InFlight(worker):
            response = await self._exchange.open(
                worker,
                request.path,
                body,
                request_id=request.leg_id("p"),
                trace=request.headers,
                first=first,
                repeat=repeat,
            )
            return await self._exchange.read(worker, response)

    async def _settle_later(self, leg: asyncio.Task[bytes], worker: Worker, frontier: Frontier) -> None:
        """The client left, or went on without this leg: when it ends, free what it filled and what it
        read."""
        try:
            filled = read_filled(await leg)
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
            self._state.leases.abandon()
