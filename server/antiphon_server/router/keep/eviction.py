"""Makes room: gives up the conversations that are worth least until a bound holds again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.keep.leases import Leases
from antiphon_server.router.keep.retention import Cause, Retention, victims
from antiphon_server.router.keep.room import Room, Rooms
from antiphon_server.router.store.frontier import Frontier, FrontierStore

T = TypeVar("T")

_FEW = 256
"""Conversations that are ranked anew each time. A ranking of more serves for a while, and is renewed beside
the turns: ten thousand take some 40 ms."""
_AT_ONCE = 64
"""Conversations valued before turns go on, which meet such a pause at each of their own steps: a quarter of a
millisecond."""
_RANKING_LIFE = 2.0
_PAUSE = 20.0
"""A ranking serves for at least so many times as long as it took: it looks at all that is kept, on any
engine, and must not become a router's main business."""
_SLACK = 20
"""Of a bound on counts, one in so many is free after room was made, and turns need not look again until it is
taken: half of it, and room is made beside them; all of it, and they wait."""
_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class _Ranking:
    """``order``: least valuable first; who is given up leaves it. ``took``: seconds."""

    made: float
    epoch: str | None
    order: list[Frontier]
    took: float = 0.0


class Eviction:
    """``conversations``: how many are kept, ``per_tenant``: of one tenant, unless ``own_limit`` of its name
    says otherwise. ``headroom``: part of a budget that turns leave free for those that come next, which then
    need not wait. ``patience``: seconds that a turn waits, where it has to, for an engine to confirm that it
    has freed what was displaced."""

    def __init__(
        self,
        store: FrontierStore,
        leases: Leases,
        rooms: Rooms,
        retention: Retention,
        clock: Callable[[], float],
        *,
        conversations: int,
        per_tenant: int,
        own_limit: Callable[[str], int | None] = lambda tenant: None,
        headroom: float = 0.0,
        patience: float = 1.0,
    ) -> None:
        self._store = store
        self._leases = leases
        self._rooms = rooms
        self._retention = retention
        self._clock = clock
        self._conversations = conversations
        self._per_tenant = per_tenant
        self._own_limit = own_limit
        self._headroom = headroom
        self._patience = patience
        self._rankings: dict[str, _Ranking] = {}
        self._ranking: dict[str, asyncio.Task[list[Frontier]]] = {}
        # Never below what is really kept: who takes or drops a frontier need not tell us.
        self._kept = 0
        self._by_tenant: Counter[str] = Counter()
        self._admitting: Counter[str] = Counter()
        self._trimming = asyncio.Lock()
        self._trims: dict[str, asyncio.Task[None]] = {}

    def retune(self, retention: Retention, *, conversations: int, per_tenant: int) -> None:
        """Go by other limits from the next turn on."""
        self._retention = retention
        self._conversations = conversations
        self._per_tenant = per_tenant
        self._rankings.clear()

    async def reserve(self, owner: object, worker: Worker, tokens: int) -> None:
        """See to it that a turn may pin ``tokens`` when it ends, and that nothing else takes this room.

        Returns when the engine has confirmed what had to go, or after ``patience``. What is larger than the
        whole budget displaces nobody.
        """
        budget = self._rooms.budget(worker)
        if budget is None or self._rooms.charge(worker, tokens) > budget:
            self._rooms.cancel(owner)
            return
        self._rooms.reserve(owner, worker, tokens)
        await self.fit(worker, int(budget * (1.0 - self._headroom)))
        await self._until_free(worker, budget)

    async def fit(self, worker: Worker, budget: int) -> None:
        """Give up what is worth least until the rest and the turns in flight fit into the budget."""
        for _ in range(_ROUNDS):  # others may take a victim first
            room = self._rooms.of(worker)
            excess = await self._resting(room, worker) + room.busy - budget
            if excess <= 0 or not await self.relieve(worker, excess, Cause.VALUE):
                return

    async def settle(self, worker: Worker, frontier: Frontier) -> None:
        """A turn's KV was recorded: count it, and see that the budget holds though the turn may have come to
        more than was reserved."""
        self._rooms.rests(frontier.worker, frontier.tokens)
        charge = self._rooms.charge(worker, frontier.tokens)
        budget = self._rooms.budget(worker)
        if budget is None:
            return
        if charge > budget:
            self.dropped(await self._leases.give_up([frontier], Cause.OVERSIZE))
            return
        await self.fit(worker, budget)

    async def relieve(self, worker: Worker, tokens: int, cause: Cause) -> list[Frontier]:
        """Give up the least valuable on a worker that hold so many tokens together. Returns them."""
        ranked = await self._ranked(worker)
        chosen = victims(ranked, tokens, lambda frontier: self._rooms.charge(worker, frontier.tokens))
        del ranked[: len(chosen)]
        self.dropped(await self._leases.give_up(chosen, cause))
        return chosen

    async def admit(self, key: Key) -> None:
        """A conversation is going to be recorded: keep the counts within their bounds."""
        self._kept += 1
        self._by_tenant[key.tenant] += 1
        if self._within(key.tenant, _due):
            return
        trim = self._trim_beside(key)
        if self._within(key.tenant):
            return
        self._admitting[key.tenant] += 1
        try:
            await asyncio.shield(trim)
            if not self._within(key.tenant):  # that one may have counted before this turn came
                await asyncio.shield(self._trim_beside(key))
        finally:
            self._admitting -= Counter((key.tenant,))  # without what is 0: tenants come and go

    def _trim_beside(self, key: Key) -> asyncio.Task[None]:
        """One for all of a tenant that come while it runs: it makes room for as many as wait for it."""
        return _one(self._trims, key.tenant, lambda: self._trim_in_turn(key))

    async def _trim_in_turn(self, key: Key) -> None:
        # One at a time: each looks at all that is kept.
        async with self._trimming:
            if not self._within(key.tenant, _due):
                await self._trim(key)

    def _within(self, tenant: str, least: Callable[[int], int] = lambda limit: limit) -> bool:
        """The counts are at most what ``least`` says of their limits."""
        return self._kept <= least(self._conversations) and self._by_tenant[tenant] <= least(
            self._limit(tenant)
        )

    def _limit(self, tenant: str) -> int:
        own_limit = self._own_limit(tenant)
        return self._per_tenant if own_limit is None else own_limit

    async def _trim(self, key: Key) -> None:
        others = [frontier for frontier in await self._store.held() if frontier.key != key]
        own = [frontier for frontier in others if frontier.key.tenant == key.tenant]
        surplus = await self._surplus(own, self._limit(key.tenant), self._admitting[key.tenant])
        await self._leases.give_up(surplus, Cause.TENANT)
        gone = set(map(id, surplus))
        rest = [frontier for frontier in others if id(frontier) not in gone]
        counted = await self._surplus(rest, self._conversations, self._admitting.total())
        surplus += await self._leases.give_up(counted, Cause.COUNT)
        for frontier in surplus:
            self._rooms.rests(frontier.worker, frontier.tokens, no_more=True)
        held = await self._store.held()
        self._kept = len(held) + self._admitting.total()
        self._by_tenant = Counter(frontier.key.tenant for frontier in held)
        self._by_tenant.update(self._admitting)

    def dropped(self, frontiers: list[Frontier]) -> None:
        """These are no longer kept."""
        self._kept -= len(frontiers)
        for frontier in frontiers:
            self._by_tenant[frontier.key.tenant] -= 1
            self._rooms.rests(frontier.worker, frontier.tokens, no_more=True)

    def forget(self, worker: Worker) -> None:
        """It left the fleet: what was ranked there need not stay in memory."""
        self._rankings.pop(worker.name, None)
        self._ranking.pop(worker.name, None)

    async def _surplus(self, frontiers: list[Frontier], limit: int, waiting: int) -> list[Frontier]:
        """The least valuable, so that there is room for those that wait, one at least, and for some that
        follow; none if there is."""
        expected = max(1, waiting)
        if len(frontiers) + expected <= _due(limit):
            return []
        most = max(0, limit - expected - limit // _SLACK)
        return (await self._order(frontiers))[: len(frontiers) - most]

    async def _resting(self, room: Room, worker: Worker) -> int:
        """Tokens that frontiers of all routers pin, in whole blocks; rather too many than too few."""
        return await self._store.tokens(worker.name) + room.padding

    async def _ranked(self, worker: Worker) -> list[Frontier]:
        """Our frontiers on a worker, least valuable first. A ranking of many may be some seconds old: who was
        kept since is not in it, and is worth more than its beginning."""
        ranking = self._rankings.get(worker.name)
        if ranking is None or not ranking.order or ranking.epoch != worker.epoch:
            return await asyncio.shield(self._rank_beside(worker))
        age = self._clock() - ranking.made
        if len(ranking.order) <= _FEW and not 0.0 <= age < ranking.took * _PAUSE:
            return await self._rank(worker)
        if not 0.0 <= age < _RANKING_LIFE:
            self._rank_beside(worker)
        return ranking.order

    def _rank_beside(self, worker: Worker) -> asyncio.Task[list[Frontier]]:
        return _one(self._ranking, worker.name, lambda: self._rank(worker))

    async def _rank(self, worker: Worker) -> list[Frontier]:
        began = self._clock()
        held = [
            frontier
            for frontier in await self._store.held()
            if frontier.worker == worker.name and frontier.epoch == worker.epoch
        ]
        await self._measure(worker, held)
        order = await self._order(held)
        made = self._clock()
        ranking = _Ranking(made, worker.epoch, order, made - began)
        self._rankings[worker.name] = ranking
        return ranking.order

    async def _order(self, frontiers: list[Frontier]) -> list[Frontier]:
        """Least valuable first. Many are valued a part at a time, so that other turns go on."""
        now = self._clock()
        ranks: dict[int, tuple[float, float]] = {}
        for start in range(0, len(frontiers), _AT_ONCE):
            if start:
                await asyncio.sleep(0)
            ranks.update((id(f), self._retention.rank(f, now)) for f in frontiers[start : start + _AT_ONCE])
        return sorted(frontiers, key=lambda frontier: ranks[id(frontier)])

    async def _measure(self, worker: Worker, held: list[Frontier]) -> None:
        """What rounding adds: exactly for our own, and by the same part for other routers' frontiers."""
        tokens = sum(frontier.tokens for frontier in held)
        own = sum(self._rooms.charge(worker, frontier.tokens) for frontier in held) - tokens
        others = max(0, await self._store.tokens(worker.name) - tokens)
        self._rooms.of(worker).padding = own + (others * own // tokens if tokens else 0)

    async def _lacks(self, room: Room, worker: Worker, budget: int) -> bool:
        """What leaves is needed."""
        return bool(room.leaving) and await self._resting(room, worker) + room.busy + room.leaving > budget

    async def _until_free(self, worker: Worker, budget: int) -> None:
        room = self._rooms.of(worker)
        if not await self._lacks(room, worker, budget):
            return
        try:
            async with asyncio.timeout(self._patience):
                while await self._lacks(room, worker, budget):
                    pending = self._leases.pending(worker, hurry=True)
                    if pending is None:
                        return
                    await asyncio.shield(pending)
                    await asyncio.sleep(0)  # those who wait for the same answer take note of it first
        except TimeoutError:
            return


def _due(limit: int) -> int:
    """How many may be kept before room is made beside the turns."""
    return limit - limit // (2 * _SLACK)


def _one(
    tasks: dict[str, asyncio.Task[T]], name: str, make: Callable[[], Coroutine[Any, Any, T]]
) -> asyncio.Task[T]:
    """The task of that name that runs, or a new one. It leaves ``tasks`` when it has ended."""
    task = tasks.get(name)
    if task is None or task.done():
        task = tasks[name] = asyncio.create_task(make())
        task.add_done_callback(_noted)
        task.add_done_callback(lambda ended: tasks.pop(name) if tasks.get(name) is ended else None)
    return task


def _noted(task: asyncio.Task[Any]) -> None:
    """Whoever needed what it makes has its error; the next one tries again."""
    if not task.cancelled():
        task.exception()
