"""What conversations pin on a decode engine, in the engine's own books: within the budget at every instant,
and nothing in the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.protocol import Info, LeaseLimits, LeaseReply, LeaseRequest
from antiphon_server.router.fleet.breaker import Breaker, BreakerPolicy
from antiphon_server.router.fleet.placement import Placement
from antiphon_server.router.fleet.worker import Engine, Worker
from antiphon_server.router.fleet.workers import Workers
from antiphon_server.router.gate.identity import Identity, Key
from antiphon_server.router.keep.answers import Answers
from antiphon_server.router.keep.conversations import CALIBRATION, Conversations, Visit
from antiphon_server.router.keep.eviction import Eviction
from antiphon_server.router.keep.leases import Leases
from antiphon_server.router.keep.releases import LeaseCalls
from antiphon_server.router.keep.retention import Cause, Retention
from antiphon_server.router.keep.returns import Returns
from antiphon_server.router.keep.room import Rooms
from antiphon_server.router.metrics import Metrics
from antiphon_server.router.store.frontier import Frontier, FrontierStore
from antiphon_server.router.store.memory_store import MemoryStore
from antiphon_server.router.upstream.connection import UpstreamError
from antiphon_server.simulator.blocks import BlockPool
from antiphon_server.simulator.leases import Leases as Books

BLOCK = 16
BUDGET = 640
LEASE = 60.0


class Calls(LeaseCalls):
    """Takes lease calls to the engine's books, ``pace`` turns of the event loop later."""

    def __init__(self, keep: Keep) -> None:
        self.keep = keep
        self.pace = 3
        self.down = False

    async def post(self, worker: Worker, request: LeaseRequest) -> LeaseReply:
        for _ in range(self.pace):
            await asyncio.sleep(0)
        if self.down:
            raise UpstreamError("down")
        return self.keep.books.apply(request, self.keep.time)


class Fleet:
    """One decode worker."""

    def __init__(self, worker: Worker) -> None:
        self.decode = [worker]

    def find(self, name: str) -> Worker | None:
        return next((worker for worker in self.decode if worker.name == name), None)

    known = find


class Places:
    def knows(self, tenant: str, conversation: str) -> bool:
        return False

    def forget(self, tenant: str, conversation: str) -> None:
        pass


class Owned:
    """A store that several routers share, as one of them sees it: it keeps alive what it recorded."""

    def __init__(self, shared: MemoryStore) -> None:
        self.shared = shared
        self.own: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shared, name)

    async def record(self, frontier: Frontier) -> list[Frontier]:
        self.own.add(frontier.lease)
        return await self.shared.record(frontier)

    async def held(self) -> list[Frontier]:
        return [frontier for frontier in await self.shared.held() if frontier.lease in self.own]


@dataclass
class Keep:
    """A router's keeping over the simulator's books. ``most``: tokens that were pinned at once at most."""

    name: str = "lease"
    conversations_limit: int = 1000
    tenant_limit: int = 1000
    budget: int = BUDGET
    headroom: float = 0.0
    shared: FrontierStore | None = None
    books: Books = field(default_factory=lambda: Books(BlockPool(2000), 600.0))
    time: float = 1000.0
    most: int = 0
    leases_made: int = 0
    crowd: dict[Key, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        engine = Engine("http://d", "decode", Breaker(BreakerPolicy()))
        engine.healthy = True
        limits = LeaseLimits(decode=LEASE, prefill=30.0, longest=600.0)
        engine.info = Info(
            1, "id", "epoch", "decode", "m", "0", "0", BLOCK, [], 1, 1, 0, 2 * self.budget, limits, True
        )
        self.worker = Worker(engine)
        self.calls = Calls(self)
        self.metrics = Metrics()
        self.valued = 0
        own = MemoryStore(10_000, clock=self.clock)
        self.store: FrontierStore = own if self.shared is None else self.shared
        self.rooms = Rooms(0.5, self.clock)
        self.returns = Returns(1000)
        retention = Retention(self.chance, keep=480.0)
        workers = cast("Workers", Fleet(self.worker))
        self.leases = Leases(
            workers,
            self.store,
            self.calls,
            self.metrics,
            self.rooms,
            retention,
            ttl=60.0,
            interval=15.0,
            clock=self.clock,
            gather=0.0,  # seconds pass here that the event loop knows nothing of
        )
        self.eviction = Eviction(
            self.store,
            self.leases,
            self.rooms,
            retention,
            self.clock,
            conversations=self.conversations_limit,
            per_tenant=self.tenant_limit,
            headroom=self.headroom,
        )
        self.conversations = Conversations(
            self.store,
            cast("Placement", Places()),
            self.leases,
            workers,
            self.rooms,
            self.eviction,
            self.returns,
            grace=1.0,
            clock=self.clock,
        )

    def clock(self) -> float:
        return self.time

    def chance(self, key: Key, idle: float, horizon: float, now: float) -> float:
        self.valued += 1
        return self.crowd.get(key, 0.5)

    @property
    def pinned(self) -> int:
        return self.books.blocks * BLOCK

    def pin(self, tokens: int) -> str:
        """The engine finishes a turn of ``tokens`` tokens and keeps them. Returns its lease."""
        self.leases_made += 1
        lease = f"{self.name}-{self.leases_made}"
        blocks = self.books._pool.allocate(-(-tokens // BLOCK))
        self.books.grant(lease, blocks, self.time + LEASE)
        self.most = max(self.most, self.pinned)
        return lease

    def frontier(self, key: Key, lease: str, tokens: int) -> Frontier:
        return Frontier(
            key,
            b"{}",
            lease,
            self.worker.name,
            "epoch",
            tokens,
            deadline=self.time + LEASE,
            idle_since=self.time,
            prompt_tokens=tokens - 1,
            began=self.time,
        )

    async def turn(self, name: str, tokens: int, *, reserve: int | None = None, tenant: str = "t") -> None:
        """A turn of a conversation, from its beginning to its record."""
        key = Key(tenant, "m", "", name)
        with self.conversations.visit(Identity(tenant, key)) as visit:
            await self.prefill(visit)
            await self.conversations.make_room(visit, self.worker, reserve or tokens)
            await asyncio.sleep(0)
            self.time += 0.01
            lease = self.pin(tokens)
            await self.conversations.record(visit, self.frontier(key, lease, tokens))

    async def prefill(self, visit: Visit) -> None:
        """Take what the conversation has; prefill pulls it, which ends its lease."""
        frontier = await self.conversations.take(visit)
        await asyncio.sleep(0)
        if frontier is not None:
            self.books.free(frontier.lease)

    async def kept(self) -> list[str]:
        return sorted(frontier.key.conversation for frontier in await self.store.held())

    async def quiet(self) -> None:
        await self.conversations.settle()
        await self.leases.flush()
        await asyncio.sleep(0)

    def evicted(self, cause: str) -> float:
        value = self.metrics.registry.get_sample_value("antiphon_evictions_total", {"cause": cause})
        return value or 0.0

    def nothing_in_flight(self) -> None:
        self.time += 2.0
        room = self.rooms.of(self.worker)
        assert (room.busy, room.leaving) == (0, 0)


async def test_room_is_made_before_the_turn_pins_anything() -> None:
    keep = Keep()
    for n in range(4):
        await keep.turn(f"c{n}", 160)
    assert keep.pinned == BUDGET
    key = Key("t", "m", "", "new")
    with keep.conversations.visit(Identity("t", key)) as visit:
        await keep.conversations.make_room(visit, keep.worker, 160)
        assert keep.pinned == BUDGET - 160
        assert await keep.kept() == ["c1", "c2", "c3"]
    assert keep.evicted("value") == 1


async def test_least_valuable_makes_room() -> None:
    keep = Keep()
    keep.crowd = {Key("t", "m", "", f"c{n}"): chance for n, chance in enumerate((0.9, 0.2, 0.8, 0.7))}
    for n in range(4):
        await keep.turn(f"c{n}", 160)
    await keep.turn("new", 160)
    assert await keep.kept() == ["c0", "c2", "c3", "new"]


async def test_turn_itself_goes_when_all_others_are_worth_more() -> None:
    keep = Keep()
    keep.crowd = {Key("t", "m", "", "poor"): 0.01}
    for n in range(4):
        await keep.turn(f"c{n}", 150)
    await keep.turn("poor", 170, reserve=16)
    await keep.quiet()
    assert await keep.kept() == ["c1", "c2", "c3"]
    assert keep.pinned <= BUDGET


async def test_turns_in_flight_share_the_room() -> None:
    keep = Keep()
    await asyncio.gather(*(keep.turn(f"a{n}", 160) for n in range(4)))
    await asyncio.gather(*(keep.turn(f"b{n}", 160) for n in range(4)))
    assert await keep.kept() == ["b0", "b1", "b2", "b3"]
    assert keep.most <= BUDGET


async def test_turn_larger_than_the_budget_is_not_kept_and_displaces_nobody() -> None:
    keep = Keep()
    await keep.turn("small", 160)
    await keep.turn("large", BUDGET + 1)
    await keep.quiet()
    assert await keep.kept() == ["small"]
    assert keep.pinned == 160
    assert keep.evicted("oversize") == 1


async def test_turn_that_comes_to_more_than_was_reserved_is_made_room_for() -> None:
    keep = Keep()
    for n in range(4):
        await keep.turn(f"c{n}", 150)
    await keep.turn("new", 320, reserve=16)
    await keep.quiet()
    assert keep.pinned <= BUDGET
    assert "new" in await keep.kept()


async def test_blocks_count_whole() -> None:
    """An engine pins whole blocks: 40 conversations of a token each fill 40 of them."""
    keep = Keep()
    for n in range(60):
        await keep.turn(f"c{n}", 1)
    await keep.quiet()
    assert keep.most <= BUDGET
    assert len(await keep.kept()) == BUDGET // BLOCK


async def test_taken_lease_counts_until_prefill_has_read_it() -> None:
    keep = Keep()
    await keep.turn("c", 320)
    key = Key("t", "m", "", "c")
    with keep.conversations.visit(Identity("t", key)) as visit:
        assert await keep.conversations.take(visit) is not None
        assert keep.rooms.of(keep.worker).busy == 320
        await keep.conversations.make_room(visit, keep.worker, 336)
        assert keep.rooms.of(keep.worker).busy == 336
    assert keep.rooms.of(keep.worker).busy == 0


async def test_what_a_turn_does_not_keep_counts_until_its_release_is_answered() -> None:
    keep = Keep()
    with keep.conversations.visit(Identity("t", None)) as visit:
        await keep.conversations.make_room(visit, keep.worker, 320)
        keep.leases.release(keep.worker, keep.pin(320))
    room = keep.rooms.of(keep.worker)
    assert (room.busy, room.leaving) == (0, 320)
    await keep.quiet()
    assert (room.busy, room.leaving) == (0, 0)


@pytest.mark.parametrize("ends", [True, False])
async def test_decode_leg_whose_client_left_counts_until_it_is_over_or_must_be(ends: bool) -> None:
    keep, over = Keep(), asyncio.Event()
    leg: Any = asyncio.create_task(over.wait())
    with (
        contextlib.suppress(asyncio.CancelledError),
        keep.conversations.visit(Identity("t", Key("t", "m", "", "c"))) as visit,
    ):
        await keep.conversations.make_room(visit, keep.worker, 320)
        visit.leave_behind(leg)
        raise asyncio.CancelledError
    assert keep.rooms.of(keep.worker).leaving == 320
    if ends:
        over.set()
        await leg
        await asyncio.sleep(0)
        assert keep.rooms.of(keep.worker).leaving == 0
    keep.nothing_in_flight()
    leg.cancel()


async def test_release_that_fails_counts_until_the_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Keep()
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    await keep.turn("c", 320)
    keep.calls.down = True
    await keep.conversations.close("t", "c")
    await keep.quiet()
    assert keep.pinned == 320
    assert keep.rooms.of(keep.worker).leaving == 320
    keep.time += LEASE
    keep.nothing_in_flight()


async def test_many_are_ranked_seldom_and_still_the_least_valuable_go() -> None:
    keep = Keep(budget=600 * BLOCK)
    draw = random.Random(3)
    for n in range(600):
        keep.crowd[Key("t", "m", "", f"c{n}")] = draw.random()
        await keep.turn(f"c{n}", BLOCK)
    before = keep.valued
    for n in range(100):
        await keep.turn(f"new{n}", BLOCK)
        keep.time += 0.1
    await keep.quiet()
    kept = set(await keep.kept())
    worth = sorted((f"c{n}" for n in range(600)), key=lambda name: keep.crowd[Key("t", "m", "", name)])
    assert keep.pinned == 600 * BLOCK
    assert kept == {*worth[100:], *(f"new{n}" for n in range(100))}
    assert keep.valued - before < 10 * 600


async def test_turn_does_not_wait_for_a_release_while_there_is_headroom() -> None:
    keep = Keep(headroom=0.25)
    for n in range(4):
        await keep.turn(f"c{n}", 160)
        await keep.quiet()
    assert await keep.kept() == ["c1", "c2", "c3"]
    keep.calls.pace = 10**9  # the engine never answers
    await asyncio.wait_for(keep.turn("new", 160), 0.5)
    assert keep.most <= BUDGET


async def test_two_routers_keep_no_more_together_than_one_may() -> None:
    shared = MemoryStore(10_000)
    books = Books(BlockPool(400), 600.0)
    one = Keep(name="one", shared=cast("FrontierStore", Owned(shared)), books=books)
    two = Keep(name="two", shared=cast("FrontierStore", Owned(shared)), books=books)
    for n in range(5):
        await one.turn(f"a{n}", 95)
    for n in range(5):
        await two.turn(f"b{n}", 95)
        await two.quiet()
        assert await shared.tokens("http://d") <= BUDGET
    for n in range(5, 9):
        await one.turn(f"a{n}", 95)
        await one.quiet()
    assert max(one.most, two.most) <= BUDGET
    assert await one.kept() == ["a4", "a5", "a6", "a7", "a8"]
    assert await two.kept() == ["b4"]


async def test_nothing_is_learnt_from_the_routers_own_turns() -> None:
    keep = Keep()
    for _ in range(100):
        await keep.turn("c", 16, tenant=CALIBRATION)
    assert len(keep.returns) == 0
    assert keep.conversations.answers.most(None) == Answers().most(None)


async def test_answers_are_learnt_from_other_turns() -> None:
    keep = Keep()
    for _ in range(100):
        await keep.turn("c", 16)
    assert len(keep.returns) == 1
    assert keep.conversations.answers.most(None) < 100


async def test_restart_empties_the_room() -> None:
    keep = Keep()
    key = Key("t", "m", "", "c")
    with keep.conversations.visit(Identity("t", key)) as visit:
        await keep.conversations.make_room(visit, keep.worker, 320)
        info = keep.worker.engine.info
        assert info is not None
        keep.worker.engine.info = Info(
            **{name: getattr(info, name) for name in info.__struct_fields__} | {"epoch": "next"}
        )
        assert keep.rooms.of(keep.worker).busy == 0


async def test_engine_of_unknown_capacity_is_left_alone() -> None:
    keep = Keep()
    keep.worker.engine.info = None
    with keep.conversations.visit(Identity("t", Key("t", "m", "", "c"))) as visit:
        await keep.conversations.make_room(visit, keep.worker, 10**9)
    assert keep.rooms.of(keep.worker).busy == 0


async def test_turn_is_served_when_the_bookkeeping_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Keep()

    async def broken(worker: str) -> int:
        raise RuntimeError("the store is broken")

    monkeypatch.setattr(keep.store, "tokens", broken)
    with keep.conversations.visit(Identity("t", Key("t", "m", "", "c"))) as visit:
        await keep.conversations.make_room(visit, keep.worker, 160)
    assert keep.rooms.of(keep.worker).busy == 0


async def test_tenant_beyond_its_count_loses_its_own_only() -> None:
    """Never a refusal (https://github.com/ai-dynamo/dynamo/issues/14570)."""
    keep = Keep(tenant_limit=3)
    await keep.turn("theirs", 16, tenant="other")
    for n in range(6):
        await keep.turn(f"c{n}", 16)
    assert await keep.kept() == ["c3", "c4", "c5", "theirs"]
    assert keep.evicted("tenant") == 3


async def test_nothing_is_ranked_of_an_engine_that_left() -> None:
    keep = Keep()
    await keep.turn("c", 160)
    await keep.eviction.relieve(keep.worker, 0, Cause.VALUE)
    assert keep.eviction._rankings
    keep.eviction.forget(keep.worker)
    assert not keep.eviction._rankings


async def test_count_evicts_the_least_valuable() -> None:
    keep = Keep(conversations_limit=3)
    keep.crowd = {Key("t", "m", "", "c0"): 0.9}
    for n in range(5):
        await keep.turn(f"c{n}", 16)
    assert await keep.kept() == ["c0", "c3", "c4"]
    assert keep.evicted("count") == 2


async def test_conversation_that_goes_on_is_counted_once() -> None:
    keep = Keep(conversations_limit=2, tenant_limit=2)
    await keep.turn("a", 16)
    for _ in range(20):
        await keep.turn("b", 16)
    assert await keep.kept() == ["a", "b"]


async def test_record_comes_to_its_end_though_the_turn_is_cancelled() -> None:
    keep = Keep()
    entered, go = asyncio.Event(), asyncio.Event()
    record = keep.store.record

    async def slow(frontier: Frontier) -> list[Frontier]:
        entered.set()
        await go.wait()
        return await record(frontier)

    keep.store.record = slow  # type: ignore[method-assign]
    turn = asyncio.create_task(keep.turn("c", 160))
    await entered.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert keep.rooms.of(keep.worker).busy == 160
    go.set()
    await keep.quiet()
    assert await keep.kept() == ["c"]
    keep.nothing_in_flight()


async def test_frontier_that_comes_when_its_turn_is_cancelled_is_released() -> None:
    keep = Keep()
    await keep.turn("c", 160)
    entered, go = asyncio.Event(), asyncio.Event()
    take = keep.store.take

    async def slow(key: Key) -> Frontier | None:
        frontier = await take(key)
        entered.set()
        await go.wait()
        return frontier

    keep.store.take = slow  # type: ignore[method-assign]
    keep.store.at_hand = False  # type: ignore[misc]
    turn = asyncio.create_task(keep.turn("c", 160))
    await entered.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    go.set()
    await keep.quiet()
    assert keep.pinned == 0
    keep.nothing_in_flight()


async def test_frontier_that_could_not_be_recorded_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Keep()

    async def broken(frontier: Frontier) -> list[Frontier]:
        raise RuntimeError("the store is broken")

    monkeypatch.setattr(keep.store, "record", broken)
    await keep.turn("c", 160)
    await keep.quiet()
    assert keep.pinned == 0
    keep.nothing_in_flight()


ENDINGS = ("recorded", "final", "left", "failed", "closed", "left mid-pull")
turns = st.lists(
    st.tuples(
        st.integers(0, 5),  # conversation
        st.integers(1, 160),  # tokens
        st.integers(0, 48),  # reserved beyond them
        st.sampled_from(ENDINGS),
        st.integers(0, 4),  # turns of the event loop between its steps
    ),
    max_size=16,
)


async def _act(keep: Keep, spec: tuple[int, int, int, str, int]) -> None:
    name, tokens, more, ending, pauses = spec
    key = Key("t", "m", "", str(name))

    async def pause() -> None:
        for _ in range(pauses):
            await asyncio.sleep(0)

    left: str | None = None
    try:
        with keep.conversations.visit(Identity("t", key)) as visit:
            frontier = await keep.conversations.take(visit)
            await pause()
            if frontier is not None:
                if ending == "left mid-pull":
                    raise asyncio.CancelledError
                if tokens % 2:
                    keep.books.free(frontier.lease)
                else:
                    keep.leases.release_frontier(frontier)
            await keep.conversations.make_room(visit, keep.worker, tokens + more)
            await pause()
            if ending == "failed":
                return
            if ending == "left":
                visit.phase = "decode"
                raise asyncio.CancelledError
            if ending == "closed":
                await keep.conversations.close("t", str(name))
            lease = keep.pin(tokens)
            if ending == "final" or visit.closed:
                keep.leases.release(keep.worker, lease)
            else:
                await keep.conversations.record(visit, keep.frontier(key, lease, tokens))
    except asyncio.CancelledError:
        left = ending
    if left == "left mid-pull" and frontier is not None:
        await pause()
        keep.leases.release_frontier(frontier)
    elif left == "left":
        await pause()
        keep.leases.release(keep.worker, keep.pin(tokens))
    await asyncio.sleep(0)


@settings(max_examples=150, deadline=None)
@given(specs=turns, pace=st.integers(0, 5), wait=st.floats(2.0, 30.0))
def test_budget_holds_at_every_instant_and_nothing_is_left_over(
    specs: list[tuple[int, int, int, str, int]], pace: int, wait: float
) -> None:
    async def main() -> None:
        keep = Keep()
        keep.calls.pace = pace
        for n in range(4):
            await keep.turn(f"full {n}", 160)
        # Three at once, each at most 208: they always fit, so the budget must hold.
        for some in (specs[n : n + 3] for n in range(0, len(specs), 3)):
            await asyncio.gather(*(_act(keep, spec) for spec in some))
            keep.time += wait
            await keep.leases.renew()
            assert keep.pinned <= BUDGET
        await keep.quiet()
        assert keep.most <= BUDGET
        held = await keep.store.held()
        assert sorted(keep.books.ids) == sorted(frontier.lease for frontier in held)
        keep.nothing_in_flight()
        for frontier in held:
            await keep.conversations.close("t", frontier.key.conversation)
        await keep.quiet()
        assert keep.pinned == 0
        keep.nothing_in_flight()

    asyncio.run(main())


async def test_turns_that_end_together_beyond_the_count_do_not_each_look_at_all_that_is_kept() -> None:
    """A thousand that did held the loop for half a minute, and their clients waited for their last chunks."""
    limit, together = 1000, 100
    keep = Keep(conversations_limit=limit, budget=100_000)
    for n in range(limit):
        await keep.turn(f"c{n}", 16)
    keep.valued = 0
    await asyncio.gather(*(keep.turn(f"new{n}", 16) for n in range(together)))
    assert len(await keep.kept()) <= limit
    assert 0 < keep.valued < together * limit / 4


async def test_room_is_made_beside_turns_before_the_count_is_reached() -> None:
    limit = 400
    keep = Keep(conversations_limit=limit, budget=100_000)
    async with asyncio.timeout(5), keep.eviction._trimming:  # somebody looks at all that is kept
        for n in range(limit - 1):
            await keep.turn(f"c{n}", 16)
        assert len(await keep.kept()) == limit - 1
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(await keep.kept()) == limit * 0.95
    keep.valued = 0
    for n in range(limit // 40):
        await keep.turn(f"more{n}", 16)
        await asyncio.sleep(0)
    assert keep.valued == 0


async def test_renewals_of_many_let_turns_go_on_in_between() -> None:
    count = 1000
    keep = Keep(conversations_limit=2 * count, budget=100_000)
    for n in range(count):
        await keep.turn(f"c{n}", 16)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    before = {frontier.lease: frontier.deadline for frontier in await keep.store.held()}
    keep.time += 20.0
    await keep.leases.renew()
    beside.cancel()
    assert all(frontier.deadline > before[frontier.lease] for frontier in await keep.store.held())
    assert turns > count / 64


async def test_turns_that_go_on_ending_at_the_count_look_seldom_at_all_that_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each did, one after the other, as the room that was made was less than those that waited for it."""
    limit, clients, turns = 2000, 250, 8
    keep = Keep(conversations_limit=limit, budget=1_000_000)
    for n in range(limit):
        await keep.turn(f"c{n}", 16)
    steps, looks, held = random.Random(7), 0, keep.store.held

    async def counted() -> list[Frontier]:
        nonlocal looks
        looks += 1
        return await held()

    async def client(number: int) -> None:
        for n in range(turns):
            for _ in range(steps.randrange(6)):  # what engines compute
                await asyncio.sleep(0)
            await keep.turn(f"{number}-{n}", 16)

    monkeypatch.setattr(keep.store, "held", counted)
    await asyncio.gather(*map(client, range(clients)))
    assert 0 < looks < clients * turns / 20
    assert len(await keep.kept()) <= limit


@pytest.mark.parametrize("limit", [1, 3, 40])
async def test_count_holds_though_more_wait_than_it_allows(limit: int) -> None:
    keep = Keep(conversations_limit=limit, budget=1_000_000)
    await asyncio.gather(*(keep.turn(f"c{n}", 16) for n in range(60)))
    await keep.turn("last", 16)
    assert len(await keep.kept()) <= limit
    assert "last" in await keep.kept()
