"""The store in memory."""

from __future__ import annotations

import asyncio
import dataclasses

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.store.memory_store import MemoryStore


def frontier(conversation: str, lease: str = "lease", salt: str = "") -> Frontier:
    return Frontier(Key("t", "m", salt, conversation), b"{}", lease, "http://d", "e", 1, 60.0, 0.0)


async def test_frontier_is_handed_out_once() -> None:
    store = MemoryStore(10)
    await store.record(frontier("c"))
    taken = await asyncio.gather(*(store.take(frontier("c").key) for _ in range(5)))
    assert [f is not None for f in taken].count(True) == 1


async def test_newest_displaces_the_older() -> None:
    store = MemoryStore(10)
    old, new = frontier("c", "old"), frontier("c", "new")
    assert await store.record(old) == []
    assert await store.record(new) == [old]
    assert await store.take(new.key) is new


async def test_bound_evicts_the_least_recent() -> None:
    store = MemoryStore(2)
    a, b, c = (frontier(name) for name in "abc")
    await store.record(a)
    await store.record(b)
    await store.record(dataclasses.replace(a, lease="again"))
    assert await store.record(c) == [b]
    assert len(store) == 2


async def test_renewal_replaces_only_what_is_still_there() -> None:
    store = MemoryStore(2)
    old = frontier("c")
    await store.record(old)
    new = dataclasses.replace(old, deadline=120.0)
    assert await store.renewed(old, new)
    assert await store.take(old.key) is new
    assert not await store.renewed(new, new)


async def test_conversation_is_found_over_salts() -> None:
    store = MemoryStore(9)
    for f in (frontier("c"), frontier("c", salt="s"), frontier("d")):
        await store.record(f)
    assert len(await store.of("t", "c")) == 2
    assert await store.of("other", "c") == []
    found = await store.of("t", "c")
    assert await store.remove(found) == found
    assert await store.remove(found) == []
    assert len(store) == 1
