"""Whatever is done in whatever order, the store in Redis answers like the one in memory."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.store.frontier import Frontier, FrontierStore
from antiphon_server.router.store.memory_store import MemoryStore
from antiphon_server.router.store.redis_store import RedisStore
from doubles.redis_server import RedisServer

NOW = 1000.0
WORKERS = ("http://d1", "http://d2")
EPOCHS = ("e1", "e2", "e3")
KEYS = [Key(tenant, "m", salt, name) for tenant in ("t", "u") for salt in ("", "s") for name in ("a", "b")]

keys, workers, epochs = st.sampled_from(KEYS), st.sampled_from(WORKERS), st.sampled_from(EPOCHS)
earlier = st.integers(0, 40)
"""How far back an operation reaches among the frontiers that were ever made."""
operations = st.one_of(
    st.tuples(
        st.just("record"),
        keys,
        workers,
        epochs,
        st.integers(0, 9),
        st.sampled_from([NOW, NOW, NOW - 100, NOW - 200]),
        st.sampled_from([NOW + 50, NOW - 500]),
    ),
    st.tuples(st.just("take"), keys),
    st.tuples(st.just("renewed"), earlier),
    st.tuples(st.just("remove"), st.lists(earlier, max_size=3)),
    st.tuples(st.just("close"), st.sampled_from("tu"), st.sampled_from("ab")),
    st.tuples(st.just("fence"), workers, epochs),
)


def shown(frontiers: list[Frontier]) -> list[Frontier]:
    return sorted(frontiers, key=lambda frontier: frontier.lease)


async def done(store: FrontierStore, step: tuple[Any, ...], made: list[Frontier]) -> Any:
    """Do a step; what it answers, in an order that does not depend on the store."""
    match step:
        case ("record", *_):
            return shown(await store.record(made[-1]))
        case ("take", key):
            return await store.take(key)
        case ("renewed", back) if made:
            old = made[-1 - back % len(made)]
            return await store.renewed(old, dataclasses.replace(old, deadline=NOW + 999, expiry=back + 0.5))
        case ("remove", backs) if made:
            asked = {made[-1 - back % len(made)] for back in backs}
            return shown(await store.remove(asked))
        case ("close", tenant, conversation):
            return shown(await store.close(tenant, conversation))
        case ("fence", worker, epoch):
            return await store.fence(worker, epoch)
    return None


async def seen(store: FrontierStore) -> Any:
    """All that can be asked."""
    return (
        await store.held(),
        [await store.tokens(worker) for worker in WORKERS],
        [shown(await store.of(tenant, name)) for tenant in "tu" for name in "ab"],
    )


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
@given(steps=st.lists(operations, max_size=40), limit=st.sampled_from([2, 100]))
async def test_both_stores_answer_alike(
    redis_server: RedisServer, steps: list[tuple[Any, ...]], limit: int
) -> None:
    def clock() -> float:
        return NOW

    memory = MemoryStore(limit, clock=clock)
    redis = RedisStore(redis_server.url, prefix=uuid.uuid4().hex, limit=limit, timeout=5.0, clock=clock)
    made: list[Frontier] = []
    try:
        for step in steps:
            if step[0] == "record":
                _, key, worker, epoch, tokens, ended, began = step
                lease, deadline = f"lease-{len(made):03}", NOW + 600
                made.append(Frontier(key, b"{}", lease, worker, epoch, tokens, deadline, ended, began=began))
            assert await done(redis, step, made) == await done(memory, step, made)
            assert await seen(redis) == await seen(memory)
        assert await redis.beat() == 0
        assert await seen(redis) == await seen(memory)
    finally:
        await redis.stop()
