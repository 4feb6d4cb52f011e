"""Redis fails; turns do not. On a real Redis that is killed, frozen and started again."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry, Gauge

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.store.degrading_store import DegradingStore
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.store.memory_store import MemoryStore
from antiphon_server.router.store.redis_connection import StoreError
from antiphon_server.router.store.redis_store import RedisStore
from doubles.clock import Clock
from doubles.redis_server import RedisServer

Settled = Callable[[Callable[[], object]], Awaitable[None]]


@dataclass
class Router:
    """What a router has of stores."""

    store: DegradingStore
    shared: RedisStore
    local: MemoryStore
    clock: Clock
    dropped: list[str] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def frontier(self, conversation: str = "c", lease: str = "lease", epoch: str = "e1") -> Frontier:
        self.clock.time += 1
        now = self.clock.time
        key = Key("t", "m", "", conversation)
        return Frontier(key, b"{}", lease, "http://d", epoch, 10, now + 60, now, began=now - 0.5)

    @property
    def gauge(self) -> float | None:
        return self.registry.get_sample_value("degraded")


Routers = Callable[[], Awaitable[Router]]


@pytest.fixture
async def router(redis_server: RedisServer) -> AsyncIterator[Routers]:
    async with AsyncExitStack() as stack:

        async def make() -> Router:
            clock = Clock()
            shared = RedisStore(redis_server.url, limit=100, timeout=0.5, clock=clock)
            local = MemoryStore(100, clock=clock)
            registry, dropped = CollectorRegistry(), []
            store = DegradingStore(
                shared,
                local,
                dropped=lambda f: dropped.append(f.lease),
                gauge=Gauge("degraded", "", registry=registry),
                beat=0.05,
                clock=clock,
            )
            await store.start()
            stack.push_async_callback(store.stop)
            return Router(store, shared, local, clock, dropped, registry)

        yield make


async def degrade(router: Router, redis: RedisServer, settled: Settled) -> None:
    redis.kill()
    await settled(lambda: router.store.degraded)


async def test_turns_go_on_in_local_memory(
    router: Routers, redis_server: RedisServer, settled: Settled, caplog: pytest.LogCaptureFixture
) -> None:
    one = await router()
    kept = one.frontier("before")
    await one.store.record(kept)
    assert (one.store.degraded, one.gauge) == (False, 0)
    await degrade(one, redis_server, settled)
    assert one.gauge == 1
    new = one.frontier()
    assert await one.store.record(new) == []
    assert await one.store.of("t", "c") == [new]
    assert await one.store.held() == [kept, new]
    assert await one.store.tokens("http://d") == 20
    assert await one.store.take(new.key) == new
    assert await one.store.take(new.key) is None
    lines = [r for r in caplog.records if r.getMessage() == "store.degraded"]
    assert len(lines) == 1
    assert lines[0].levelno == logging.WARNING


async def test_router_starts_without_redis(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    redis_server.kill()
    one = await router()
    assert one.store.degraded
    f = one.frontier()
    await one.store.record(f)
    redis_server.start()
    await settled(lambda: not one.store.degraded)
    assert await (await router()).store.of("t", "c") != []


async def test_first_failure_is_noticed_by_the_turn_itself(
    router: Routers, redis_server: RedisServer
) -> None:
    one = await router()
    await one.shared.tokens("")
    redis_server.kill()
    assert await one.store.take(one.frontier().key) is None
    assert one.store.degraded


async def test_local_frontiers_move_over(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    one = await router()
    await degrade(one, redis_server, settled)
    for number in range(20):
        await one.store.record(one.frontier(f"c{number}", f"l{number}"))
    redis_server.start()
    await settled(lambda: not one.store.degraded)
    assert one.gauge == 0
    assert len(one.local) == 0
    other = await router()
    taken = await asyncio.gather(*(other.store.take(Key("t", "m", "", f"c{n}")) for n in range(20)))
    assert [f.lease for f in taken if f is not None] == [f"l{n}" for n in range(20)]


async def test_older_local_frontier_gives_way_to_what_another_router_recorded(
    router: Routers, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await router(), await router()

    async def cut_off() -> None:
        raise StoreError("no way to Redis", unsent=True)

    monkeypatch.setattr(one.shared, "beat", cut_off)
    await settled(lambda: one.store.degraded)
    await one.store.record(one.frontier(lease="older"))
    one.clock.time += 30
    await two.store.record(two.frontier(lease="newer"))
    monkeypatch.undo()
    await settled(lambda: not one.store.degraded)
    assert one.dropped == ["older"]
    assert [f.lease for f in await one.store.of("t", "c")] == ["newer"]


async def test_nobody_waits_for_a_silent_redis_after_the_first_failure(
    router: Routers, redis_server: RedisServer, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await router()
    redis_server.freeze()
    try:
        await settled(lambda: one.store.degraded)

        def asked(*_: object) -> None:
            raise AssertionError("a turn asked Redis")

        for name in ("take", "record", "remove", "of", "close", "tokens", "held"):
            monkeypatch.setattr(one.shared, name, asked)
        f = one.frontier()
        await one.store.record(f)
        assert await one.store.tokens("http://d") == 10
        assert await one.store.close("t", "c") == [f]
        assert await one.store.take(f.key) is None
        monkeypatch.undo()
    finally:
        redis_server.thaw()
    await settled(lambda: not one.store.degraded)


async def test_what_redis_may_have_got_is_not_kept_twice(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    one = await router()
    await one.shared.tokens("")  # a connection is open
    redis_server.freeze()
    await one.store.record(one.frontier())
    assert one.store.degraded
    assert len(one.local) == 0
    redis_server.thaw()
    await settled(lambda: not one.store.degraded)
    two = await router()
    taken = [await store.take(Key("t", "m", "", "c")) for store in (one.store, two.store)]
    assert len([f for f in taken if f is not None]) <= 1


async def test_frontier_in_redis_is_not_handed_out_while_it_is_away(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    one, two = await router(), await router()
    f = one.frontier()
    await one.store.record(f)
    redis_server.freeze()
    await settled(lambda: one.store.degraded)
    assert await one.store.take(f.key) is None
    assert await one.store.remove([f]) == []
    redis_server.thaw()
    await settled(lambda: not one.store.degraded)
    assert one.dropped == ["lease"]
    assert await two.shared.take(f.key) is None


async def test_lease_is_kept_alive_meanwhile(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    one, two = await router(), await router()
    f = one.frontier()
    await one.store.record(f)
    redis_server.freeze()
    await settled(lambda: one.store.degraded)
    renewed = dataclasses.replace(f, deadline=f.deadline + 900, expiry=7.0)
    assert await one.store.renewed(f, renewed)
    redis_server.thaw()
    await settled(lambda: not one.store.degraded)
    taken = await two.shared.take(f.key)
    assert taken is not None
    assert taken.expiry == 7.0
    assert taken.deadline > two.clock.time + 800


async def test_what_was_closed_or_ended_meanwhile_is_settled(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    one, two = await router(), await router()
    await one.store.record(one.frontier("closed", "closed"))
    await one.store.record(dataclasses.replace(one.frontier("ended"), worker="http://d2"))
    late = two.frontier("closed", "late")
    redis_server.freeze()
    await settled(lambda: one.store.degraded)
    assert await one.store.close("t", "closed") == []
    await one.store.fence("http://d2", "e2")
    redis_server.thaw()
    await settled(lambda: not one.store.degraded)
    assert one.dropped == ["closed"]
    assert await two.shared.of("t", "closed") == []
    assert await two.shared.record(dataclasses.replace(late, began=0.0)) != []
    assert await two.shared.take(Key("t", "m", "", "ended")) is None


async def test_redis_that_refuses_to_write_is_down(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    one = await router()
    with redis_server.client() as client:
        client.replicaof("127.0.0.1", 1)
    await settled(lambda: one.store.degraded)
    f = one.frontier()
    await one.store.record(f)
    assert await one.store.take(f.key) == f
    with redis_server.client() as client:
        client.replicaof("NO", "ONE")
    await settled(lambda: not one.store.degraded)


async def test_router_that_stops_without_redis_gives_up_what_only_it_knows(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    one = await router()
    await one.store.record(one.frontier("shared", "shared"))
    await degrade(one, redis_server, settled)
    await one.store.record(one.frontier("local", "local"))
    assert [f.lease for f in await one.store.leave()] == ["local"]


async def test_router_stops_while_redis_keeps_silent(
    router: Routers, redis_server: RedisServer, settled: Settled
) -> None:
    one = await router()
    await one.store.record(one.frontier())
    redis_server.freeze()
    async with asyncio.timeout(10):
        assert await one.store.leave() == []
        await one.store.stop()
