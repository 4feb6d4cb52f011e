"""Conversations that are being served: their turns in flight, what they keep between turns, and their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from antiphon_server.router.fleet.placement import Placement
from antiphon_server.router.fleet.workers import Worker, Workers
from antiphon_server.router.gate.identity import Identity, Key
from antiphon_server.router.keep.answers import Answers
from antiphon_server.router.keep.eviction import Eviction
from antiphon_server.router.keep.leases import Leases
from antiphon_server.router.keep.returns import Returns
from antiphon_server.router.keep.room import Rooms
from antiphon_server.router.store.frontier import Frontier, FrontierStore

log = logging.getLogger(__name__)

_T = TypeVar("_T")

CALIBRATION = "antiphon-calibration"
"""Tenant of the router's own turns: nothing is learnt from how they are answered and return."""


class Visit:
    """One turn's stay in a conversation. ``closed``: the conversation ended meanwhile, so nothing is to be
    kept. ``company``: other turns of the same key were in flight when it began. ``phase``: what it is
    at."""

    def __init__(self, key: Key | None, company: bool) -> None:
        self.key = key
        self.company = company
        self.closed = False
        self.phase = "plan"
        self._taken: tuple[Worker, str] | None = None
        self._worker: Worker | None = None
        self._recording = False
        self._behind: asyncio.Task[None] | None = None

    def leave_behind(self, task: asyncio.Task[None]) -> None:
        """The client has left; ``task`` sees the turn's decode leg to its end."""
        self._behind = task


class Stay:
    """A visit for as long as the block takes."""

    __slots__ = ("_conversations", "_key", "_visit", "_visits")

    def __init__(self, conversations: Conversations, key: Key | None) -> None:
        self._conversations = conversations
        self._key = key

    def __enter__(self) -> Visit:
        self._visit, self._visits = self._conversations._enter(self._key)
        return self._visit

    def __exit__(self, *_: object) -> None:
        self._conversations._exit(self._visit, self._visits)


class Conversations:
    """Turns in flight by conversation, and the frontiers that rest between turns. ``grace``: seconds that a
    decode leg may go on after its client has left. ``clock``: the router's own."""

    def __init__(
        self,
        store: FrontierStore,
        placement: Placement,
        leases: Leases,
        workers: Workers,
        rooms: Rooms,
        eviction: Eviction,
        returns: Returns,
        *,
        grace: float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._placement = placement
        self._leases = leases
        self._workers = workers
        self._rooms = rooms
        self._eviction = eviction
        self._returns = returns
        self._grace = grace
        self._clock = clock
        self.answers = Answers()
        self._visits: dict[tuple[str, str], set[Visit]] = {}
        self._bookkeeping: set[asyncio.Task[Any]] = set()

    def visit(self, identity: Identity) -> Stay:
        """The time that a turn is in flight."""
        return Stay(self, identity.key)

    def _enter(self, key: Key | None) -> tuple[Visit, set[Visit]]:
        visits: set[Visit] = set()
        if key is not None:
            visits = self._visits.setdefault((key.tenant, key.conversation), visits)
        visit = Visit(key, company=any(other.key == key for other in visits))
        if key is not None and not visit.company and key.tenant != CALIBRATION:
            self._returns.began(key, self._clock())
        visits.add(visit)
        return visit, visits

    def _exit(self, visit: Visit, visits: set[Visit]) -> None:
        visits.discard(visit)
        if visit.key is not None:
            self._leave(visit.key, visit, visits)
        self._end_reservation(visit)

    async def take(self, visit: Visit) -> Frontier | None:
        """The conversation's frontier, for this turn alone. Its KV stays pinned until prefill has read it or
        it is released. Never fails; what comes when the turn is cancelled already is released."""
        if visit.key is None:
            return None
        try:
            if self._store.at_hand:
                frontier = await self._store.take(visit.key)
            else:
                frontier = await self._taken(visit.key)
        except Exception:
            log.exception("conversations.not_taken")
            return None
        if frontier is None:
            return None
        self._eviction.dropped([frontier])
        worker = self._workers.find(frontier.worker)
        if worker is not None and worker.epoch == frontier.epoch:
            visit._taken = (worker, frontier.lease)
            self._rooms.loosen(worker, frontier.lease, frontier.tokens, frontier.deadline, leaving=False)
        return frontier

    async def make_room(self, visit: Visit, worker: Worker, tokens: int) -> None:
        """Before a decode leg: let ``worker`` be able to pin ``tokens`` (the most that the turn may come to)
        within its budget when the turn ends. Gives up what is worth least; never fails, and waits only for
        the engine to confirm what had to go. A second call replaces the first."""
        if visit._taken is not None:  # prefill has read it, or its release was asked for
            self._rooms.read(*visit._taken)
            visit._taken = None
        visit._worker = worker
        try:
            await self._eviction.reserve(visit, worker, tokens)
        except Exception:
            log.exception("conversations.no_room", extra={"worker": worker.name, "tokens": tokens})

    async def record(self, visit: Visit, frontier: Frontier) -> None:
        """The turn's KV becomes the conversation's frontier; what it displaces is released. Never fails, and
        comes to its end even when the turn is cancelled."""
        visit._recording = True
        if frontier.prompt_tokens and frontier.key.tenant != CALIBRATION:
            self.answers.add(frontier.tokens - frontier.prompt_tokens)
        await self._to_the_end(self._recorded(visit, frontier))

    async def close(self, tenant: str, conversation: str) -> bool:
        """End a conversation of any model and salt: release its KV now. False if it is unknown. Comes to its
        end even when it is cancelled."""
        return await self._to_the_end(self._close(tenant, conversation))

    async def settle(self) -> None:
        """Until nothing is half recorded."""
        while self._bookkeeping:
            await asyncio.wait(set(self._bookkeeping))

    async def describe(self, tenant: str, conversation: str, now: float) -> dict[str, Any] | None:
        """State for the client, None if unknown. Times in seconds; no addresses."""
        visits = self._visits.get((tenant, conversation), set())
        frontiers = await self._store.of(tenant, conversation)
        if not (visits or frontiers or self._placement.knows(tenant, conversation)):
            return None
        return {
            "id": conversation,
            "object": "antiphon.conversation",
            "turns_in_flight": len(visits),
            "kept": [
                {
                    "model": frontier.key.model,
                    "tokens": frontier.tokens,
                    "idle": round(max(0.0, now - frontier.idle_since), 3),
                    "lease": round(max(0.0, frontier.deadline - now), 3),
                }
                for frontier in frontiers
            ],
        }

    async def _taken(self, key: Key) -> Frontier | None:
        taking = self._book(self._store.take(key))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(self._give_back)
            raise

    async def _recorded(self, visit: Visit, frontier: Frontier) -> None:
        try:
            await self._record(visit, frontier)
        except Exception:
            log.exception("conversations.not_recorded", extra={"worker": frontier.worker})

    async def _record(self, visit: Visit, frontier: Frontier) -> None:
        try:
            await self._eviction.admit(frontier.key)
            displaced = await self._store.record(frontier)
            if visit.closed:
                displaced += await self._store.remove([frontier])
        except Exception:
            self._leases.release_frontier(frontier)
            raise
        finally:
            self._rooms.cancel(visit)
        for old in displaced:
            self._leases.release_frontier(old)
        self._eviction.dropped(displaced)
        worker = self._workers.find(frontier.worker)
        if worker is not None and not any(old is frontier for old in displaced):
            await self._eviction.settle(worker, frontier)

    async def _close(self, tenant: str, conversation: str) -> bool:
        visits = self._visits.get((tenant, conversation), set())
        for visit in visits:
            visit.closed = True
        dropped = await self._store.close(tenant, conversation)
        now = self._clock()
        for frontier in dropped:
            self._leases.release_frontier(frontier)
            self._returns.closed(frontier.key, now)
        self._eviction.dropped(dropped)
        known = bool(visits or dropped) or self._placement.knows(tenant, conversation)
        self._placement.forget(tenant, conversation)
        return known

    def _leave(self, key: Key, visit: Visit, visits: set[Visit]) -> None:
        name = (key.tenant, key.conversation)
        if not visits and self._visits.get(name) is visits:
            del self._visits[name]
        if key.tenant == CALIBRATION:
            return
        if visit.closed:
            self._returns.closed(key, self._clock())
        elif not any(other.key == key for other in visits):
            self._returns.ended(key, self._clock())

    def _end_reservation(self, visit: Visit) -> None:
        """What the turn may still pin counts until its engine has answered the turn's last release; a decode
        leg that goes on without its client makes that when it ends, and it does not go on for ever."""
        if visit._recording or visit._worker is None:
            return
        if visit._behind is not None and not visit._behind.done():
            self._rooms.linger(visit, self._grace)
            visit._behind.add_done_callback(lambda _: self._freed_when_released(visit, visit._worker))
            return
        if self._leases.pending(visit._worker) is None:
            self._rooms.cancel(visit)
            return
        self._rooms.linger(visit)
        self._freed_when_released(visit, visit._worker)

    def _freed_when_released(self, visit: Visit, worker: Worker | None) -> None:
        pending = self._leases.pending(worker) if worker is not None else None
        if pending is None:
            self._rooms.lingered(visit)
        else:
            pending.add_done_callback(lambda _: self._rooms.lingered(visit))

    def _give_back(self, taking: asyncio.Task[Frontier | None]) -> None:
        if taking.cancelled() or taking.exception() is not None:
            return
        frontier = taking.result()
        if frontier is not None:
            self._eviction.dropped([frontier])
            self._leases.release_frontier(frontier)

    async def _to_the_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await asyncio.shield(self._book(work))

    def _book(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._bookkeeping.add(task)
        task.add_done_callback(self._bookkeeping.discard)
        return task
