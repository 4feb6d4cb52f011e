"""The store's contract, kept by the one in memory and by the one in a real Redis; and what Redis adds."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.plan.extent import Extent
from antiphon_server.router.store.frontier import Frontier, FrontierStore
from antiphon_server.router.store.memory_store import MemoryStore
from antiphon_server.router.store.redis_connection import StoreError
from antiphon_server.router.store.redis_store import RedisStore
from doubles.clock import Clock
from doubles.redis_server import RedisServer

NOW = 1000.0
Make = Callable[..., FrontierStore]


def frontier(
    conversation: str = "c",
    lease: str = "lease",
    *,
    tenant: str = "t",
    salt: str = "",
    worker: str = "http://d",
    epoch: str = "e1",
    tokens: int = 10,
    idle_since: float = NOW,
    deadline: float = NOW + 60,
    began: float = NOW - 1,
) -> Frontier:
    key = Key(tenant, "m", salt, conversation)
    extent = Extent(5, 6, 7)
    return Frontier(
        key, b'{"a": 1}', lease, worker, epoch, tokens, deadline, idle_since, 4, extent, None, began
    )


@pytest.fixture
async def shared(redis_server: RedisServer) -> AsyncIterator[Callable[..., RedisStore]]:
    """Make stores of several routers on one Redis."""
    async with AsyncExitStack() as stack:

        def make(**options: object) -> RedisStore:
            given = {"limit": 100, "timeout": 5.0, "clock": Clock(), **options}
            store = RedisStore(redis_server.url, **given)  # type: ignore[arg-type]
            stack.push_async_callback(store.stop)
            return store

        yield make


@pytest.fixture(params=["memory", "redis"])
def make(request: pytest.FixtureRequest) -> Make:
    """A store of each kind."""
    if request.param == "redis":
        made: Make = request.getfixturevalue("shared")
        return made
    return lambda **options: MemoryStore(**{"limit": 100, "clock": Clock(), **options})


def leases(frontiers: list[Frontier]) -> list[str]:
    return sorted(f.lease for f in frontiers)


async def test_frontier_comes_back_as_it_was(make: Make) -> None:
    store = make()
    await store.record(frontier())
    assert await store.take(frontier().key) == frontier()


async def test_frontier_is_handed_out_once(make: Make) -> None:
    store = make()
    await store.record(frontier())
    taken = await asyncio.gather(*(store.take(frontier().key) for _ in range(20)))
    assert [f is not None for f in taken].count(True) == 1
    assert await store.tokens("http://d") == 0


async def test_tenants_models_and_salts_do_not_meet(make: Make) -> None:
    store = make()
    await store.record(frontier())
    for other in (
        Key("u", "m", "", "c"),
        Key("t", "n", "", "c"),
        Key("t", "m", "s", "c"),
        Key("t", "m", "", "d"),
    ):
        assert await store.take(other) is None


async def test_newest_displaces_the_older(make: Make) -> None:
    store = make()
    assert await store.record(frontier(lease="old")) == []
    assert await store.record(frontier(lease="new", tokens=30)) == [frontier(lease="old")]
    assert await store.tokens("http://d") == 30
    assert leases(await store.held()) == ["new"]


async def test_turn_that_ended_earlier_does_not_displace_a_later_one(make: Make) -> None:
    store = make()
    late = frontier(lease="late", idle_since=NOW - 50)
    await store.record(frontier(lease="kept"))
    assert await store.record(late) == [late]
    assert leases(await store.held()) == ["kept"]


async def test_bound_evicts_the_least_recent(make: Make) -> None:
    store = make(limit=2)
    for name in "ab":
        await store.record(frontier(name, name))
    await store.record(frontier("a", "a2"))
    assert await store.record(frontier("c", "c")) == [frontier("b", "b")]
    assert leases(await store.held()) == ["a2", "c"]
    assert await store.take(frontier("b").key) is None


async def test_renewal_replaces_what_is_still_there(make: Make) -> None:
    store = make()
    old = frontier()
    await store.record(old)
    new = dataclasses.replace(old, deadline=NOW + 120, expiry=77.125)
    assert await store.renewed(old, new)
    assert await store.take(old.key) == new
    assert not await store.renewed(new, new)
    assert await store.held() == []


async def test_renewal_of_a_displaced_frontier_changes_nothing(make: Make) -> None:
    store = make()
    old, new = frontier(lease="old"), frontier(lease="new")
    await store.record(old)
    await store.record(new)
    assert not await store.renewed(old, dataclasses.replace(old, deadline=NOW + 500))
    assert await store.take(new.key) == new


async def test_removal_names_a_lease_and_is_told_once(make: Make) -> None:
    store = make()
    old, new = frontier(lease="old"), frontier(lease="new")
    await store.record(old)
    await store.record(new)
    assert await store.remove([old]) == []
    assert await store.remove([new, frontier("unknown")]) == [new]
    assert await store.remove([new]) == []
    assert await store.tokens("http://d") == 0


async def test_removal_returns_the_last_renewal(make: Make) -> None:
    store = make()
    old = frontier()
    await store.record(old)
    new = dataclasses.replace(old, deadline=old.deadline + 60, expiry=1.5)
    assert await store.renewed(old, new)
    assert await store.remove([old]) == [new]


async def test_conversation_is_found_over_salts(make: Make) -> None:
    store = make()
    for f in (frontier(lease="1"), frontier(lease="2", salt="s"), frontier("d", "3")):
        await store.record(f)
    assert leases(await store.of("t", "c")) == ["1", "2"]
    assert await store.of("other", "c") == []
    assert leases(await store.close("t", "c")) == ["1", "2"]
    assert await store.of("t", "c") == []
    assert leases(await store.held()) == ["3"]


async def test_closed_conversation_is_not_brought_back_by_a_turn_in_flight(make: Make) -> None:
    clock = Clock()
    store = make(clock=clock)
    await store.close("t", "c")
    late = frontier(began=NOW - 5)
    assert await store.record(late) == [late]
    assert await store.take(late.key) is None
    clock.time = NOW + 10
    again = frontier(began=NOW + 9, idle_since=NOW + 10)
    if isinstance(store, RedisStore):  # by its own clock, no second has passed
        again = dataclasses.replace(again, began=NOW + 11)
    assert await store.record(again) == []


async def test_fence_drops_earlier_lives_and_refuses_late_ones(make: Make) -> None:
    store = make(limit=1000)
    await store.fence("http://d", "e1")
    for number in range(300):
        await store.record(frontier(f"c{number}", f"l{number}"))
    await store.record(frontier("other", "other", worker="http://d2"))
    await store.fence("http://d", "e2")
    assert leases(await store.held()) == ["other"]
    assert await store.tokens("http://d") == 0
    assert await store.take(frontier("c1").key) is None
    late = frontier("c1", "late")
    assert await store.record(late) == [late]
    assert await store.record(frontier("c1", "now", epoch="e2")) == []
    await store.fence("http://d", "e1")
    assert leases(await store.held()) == ["now", "other"]
    assert leases(await store.of("t", "c1")) == ["now"]


async def test_tokens_are_counted_by_worker(make: Make) -> None:
    store = make()
    await store.record(frontier("a", tokens=3))
    await store.record(frontier("b", tokens=4))
    await store.record(frontier("c", tokens=5, worker="http://d2"))
    assert [await store.tokens(w) for w in ("http://d", "http://d2", "http://d3")] == [7, 5, 0]
    await store.take(frontier("a").key)
    assert await store.tokens("http://d") == 4


async def test_router_that_stops_gives_up_what_nobody_keeps_alive(make: Make) -> None:
    store = make(release=True)
    await store.record(frontier())
    assert await store.leave() == [frontier()]
    assert await store.tokens("http://d") == 0


# What Redis adds.


async def test_of_two_routers_only_one_gets_a_frontier(shared: Callable[..., RedisStore]) -> None:
    one, two = shared(), shared()
    for number in range(50):
        await one.record(frontier(f"c{number}"))
    keys = [frontier(f"c{number}").key for number in range(50)]
    taken = await asyncio.gather(*(store.take(key) for key in keys for store in (one, two)))
    for first, second in zip(taken[::2], taken[1::2], strict=True):
        assert (first is None) != (second is None)


async def test_times_are_told_on_each_routers_own_clock(shared: Callable[..., RedisStore]) -> None:
    one, two = shared(), shared(clock=Clock(5.0))
    await one.record(frontier(idle_since=NOW - 20, deadline=NOW + 60))
    taken = await two.take(frontier().key)
    assert taken is not None
    assert taken.deadline == pytest.approx(65.0, abs=5)
    assert taken.idle_since == pytest.approx(-15.0, abs=5)
    assert taken.deadline <= 65.0


async def test_frontier_ends_with_its_lease(
    shared: Callable[..., RedisStore], settled: Callable[..., object]
) -> None:
    store = shared()
    await store.record(frontier("short", deadline=NOW + 0.2, tokens=3))
    await store.record(frontier("long", tokens=4))
    while await store.of("t", "short"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert await store.take(frontier("short").key) is None
    assert await store.tokens("http://d") == 4
    await store.beat()
    assert [f.key.conversation for f in await store.held()] == ["long"]


async def test_every_key_but_a_lasting_one_ends_by_itself(
    shared: Callable[..., RedisStore], redis_server: RedisServer
) -> None:
    store = shared()
    await store.start()
    await store.record(frontier())
    await store.close("t", "other")
    await store.fence("http://d", "e1")
    with redis_server.client() as client:
        lasting = [key for key in client.scan_iter("*") if client.pttl(key) < 0]
    assert lasting == ["{antiphon}:1:routers"]


async def test_no_key_tells_who_talks(shared: Callable[..., RedisStore], redis_server: RedisServer) -> None:
    store = shared()
    await store.record(frontier("secret-conversation", tenant="secret-tenant", salt="secret-salt"))
    with redis_server.client() as client:
        keys = list(client.scan_iter("*"))
    assert keys
    assert not [key for key in keys if "secret" in key]
    assert all(key.startswith("{antiphon}:1:") for key in keys)


async def test_prefixes_part_fleets(shared: Callable[..., RedisStore]) -> None:
    one, two = shared(prefix="one"), shared(prefix="two")
    await one.record(frontier())
    assert await two.take(frontier().key) is None


async def test_books_follow_what_another_router_does(shared: Callable[..., RedisStore]) -> None:
    one, two = shared(), shared()
    for name in "abc":
        await one.record(frontier(name, name))
    await two.take(frontier("a").key)
    assert leases(await two.record(frontier("b", "b2", idle_since=NOW + 1))) == ["b"]
    await one.beat()
    assert leases(await one.held()) == ["c"]
    assert leases(await two.held()) == ["b2"]
    assert await two.tokens("http://d") == 20


async def test_frontiers_of_a_dead_router_are_adopted_by_one(shared: Callable[..., RedisStore]) -> None:
    dead = shared(router="dead")
    others = [shared(router=name) for name in ("one", "two")]
    await dead.beat()
    for number in range(30):
        await dead.record(frontier(f"c{number}", f"l{number:02}", idle_since=NOW - number))
    await dead.leave()
    assert sum(await asyncio.gather(*(store.beat() for store in others))) == 30
    held = [await store.held() for store in others]
    assert leases(held[0] + held[1]) == [f"l{number:02}" for number in range(30)]
    adopter = others[0] if held[0] else others[1]
    kept = (await adopter.held())[0]
    assert kept.lease == "l29"
    assert await adopter.renewed(kept, dataclasses.replace(kept, deadline=NOW + 99))


async def test_living_router_keeps_its_own(shared: Callable[..., RedisStore]) -> None:
    one, two = shared(router="one"), shared(router="two")
    await one.beat()
    await one.record(frontier())
    assert await two.beat() == 0
    assert len(await one.held()) == 1


async def test_adoption_stops_at_the_bound(shared: Callable[..., RedisStore]) -> None:
    dead, one, two = shared(), shared(limit=3), shared()
    await dead.beat()
    for number in range(5):
        await dead.record(frontier(f"c{number}"))
    await dead.leave()
    assert await one.beat() == 3
    assert await two.beat() == 2


async def test_router_that_stops_leaves_its_frontiers_to_the_next(
    shared: Callable[..., RedisStore],
) -> None:
    one, two = shared(), shared()
    await one.start()
    await one.record(frontier())
    assert await one.leave() == []
    await two.start()
    assert leases(await two.held()) == ["lease"]


async def test_recorded_without_an_answer_is_found_in_the_books(shared: Callable[..., RedisStore]) -> None:
    store = shared(router="same")
    await shared(router="same").record(frontier())
    assert await store.held() == []
    await store.beat()
    assert await store.held() == [dataclasses.replace(f, began=f.idle_since) for f in await store.held()]
    assert leases(await store.held()) == ["lease"]


async def test_unreadable_frontier_is_none(
    shared: Callable[..., RedisStore], redis_server: RedisServer
) -> None:
    store = shared()
    await store.record(frontier())
    with redis_server.client() as client:
        (key,) = client.scan_iter("*frontier:*")
        client.hset(key, "d", "nonsense")
    assert await shared().take(frontier().key) is None


async def test_scripts_come_back_after_redis_forgot_them(
    shared: Callable[..., RedisStore], redis_server: RedisServer
) -> None:
    store = shared()
    await store.record(frontier())
    with redis_server.client() as client:
        client.script_flush()
    assert await store.take(frontier().key) == frontier()


async def test_redis_that_does_not_answer_is_an_error_within_the_timeout(
    shared: Callable[..., RedisStore], redis_server: RedisServer
) -> None:
    store = shared(timeout=0.2)
    await store.tokens("")
    redis_server.freeze()
    try:
        with pytest.raises(StoreError, match=r"did not answer within 0\.2 s") as raised:
            await store.take(frontier().key)
    finally:
        redis_server.thaw()
    assert not raised.value.unsent


async def test_router_that_gives_no_sign_of_life_counts_as_dead(
    shared: Callable[..., RedisStore],
) -> None:
    dead, heir = shared(), shared(silence=0.05)
    await dead.beat()
    await dead.record(frontier())
    while not await heir.beat():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert leases(await heir.held()) == ["lease"]
    assert not await dead.beat()
    assert await dead.held() == []


async def test_refused_connection_is_told_from_a_lost_answer(
    shared: Callable[..., RedisStore], redis_server: RedisServer
) -> None:
    store = shared()
    redis_server.kill()
    with pytest.raises(StoreError) as raised:
        await store.take(frontier().key)
    assert raised.value.unsent


async def test_cluster_is_refused_by_name(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--cluster-enabled", "yes")
    server.start()
    store = RedisStore(server.url, limit=1, timeout=5.0)
    try:
        with pytest.raises(StoreError, match="is a Redis Cluster, which is not supported"):
            await store.start()
    finally:
        await store.stop()
        server.kill()


@pytest.mark.parametrize(
    "value",
    ["redis//h", "http://user:pass-word@h", "redis://", "unix://", "redis://:pass-word@h/zero", "disk"],
)
def test_bad_store_is_named_without_its_password(value: str) -> None:
    with pytest.raises(ValueError, match="use memory, redis://host:6379/0") as raised:
        RouterSettings(store=value)
    (fault,) = raised.value.errors()  # type: ignore[attr-defined]
    assert "pass-word" not in fault["msg"]


def test_password_of_the_store_is_not_shown() -> None:
    url = "redis://user:pass-word@h:6379/1?password=pass-word"
    settings = RouterSettings(store=url)
    assert "pass-word" not in repr(settings)
    assert RedisStore(url, limit=1).address == "redis://***@h:6379/1?***"
