"""Conversations in threads and executors."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import multiprocessing
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

import antiphon
from antiphon import _ambient
from antiphon.testing import FakeRouter


def current_id() -> str | None:
    conversation = antiphon.current()
    return conversation.id if conversation else None


def on_a_thread(function: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_thread_knows_no_conversation_unless_it_is_carried_there() -> None:
    with antiphon.conversation("a"):
        assert on_a_thread(current_id) is None
        assert on_a_thread(antiphon.carry(current_id)) == "a"


def test_conversation_is_the_one_where_carry_is_called_and_not_where_the_function_runs() -> None:
    with antiphon.conversation("a"):
        carried = antiphon.carry(current_id)
    with antiphon.conversation("b"):
        assert carried() == "a"
        assert current_id() == "b"
    assert current_id() is None


def test_carried_function_leaves_nothing_behind_on_its_thread(pool: ThreadPoolExecutor) -> None:
    with antiphon.conversation("a"):
        assert pool.submit(antiphon.carry(current_id)).result() == "a"

    def left_open() -> None:
        antiphon.conversation("inner").__enter__()

    def failing() -> None:
        raise LookupError

    with antiphon.conversation("a"):
        pool.submit(antiphon.carry(left_open)).result()
        with pytest.raises(LookupError):
            pool.submit(antiphon.carry(failing)).result()
    assert {pool.submit(current_id).result() for _ in range(8)} == {None}


def test_function_is_itself_where_no_conversation_is_current(pool: ThreadPoolExecutor) -> None:
    assert antiphon.carry(current_id) is current_id
    assert antiphon.carrying(pool).submit(current_id).result() is None


def test_carried_function_keeps_its_name_signature_and_kind() -> None:
    def search(item: str, *, most: int = 3) -> list[str]:
        """Find."""
        return [item] * most

    async def asearch(item: str) -> str:
        return item

    with antiphon.conversation("a"):
        carried, acarried = antiphon.carry(search), antiphon.carry(asearch)
    assert (carried.__name__, carried.__doc__) == ("search", "Find.")
    assert inspect.signature(carried) == inspect.signature(search)
    assert carried("x", most=1) == ["x"]
    assert inspect.iscoroutinefunction(acarried)
    assert not inspect.iscoroutinefunction(carried)


async def pausing() -> str | None:
    await asyncio.sleep(0)
    return current_id()


@pytest.mark.parametrize("function", [pausing, functools.partial(pausing), lambda: pausing()])
async def test_coroutine_runs_in_the_conversation_on_any_loop(function: Any) -> None:
    with antiphon.conversation("a"):
        carried = antiphon.carry(function)
    assert await asyncio.to_thread(lambda: asyncio.run(carried())) == "a"
    assert await carried() == "a"
    assert current_id() is None


async def test_generators_run_their_steps_in_the_conversation() -> None:
    def ids() -> Iterator[str | None]:
        yield current_id()

    async def aids() -> AsyncIterator[str | None]:
        yield current_id()

    with antiphon.conversation("a"):
        carried, acarried = antiphon.carry(ids), antiphon.carry(aids)
    assert [(seen, current_id()) for seen in carried()] == [("a", None)]
    assert [(seen, current_id()) async for seen in acarried()] == [("a", None)]


async def test_coroutine_thrown_away_in_another_context_changes_nothing_there() -> None:
    with antiphon.conversation("a"):
        coroutine: Any = antiphon.carry(pausing)()
    with antiphon.conversation("b"):
        contextvars.Context().run(coroutine.send, None)
        coroutine.close()
        assert current_id() == "b"
    assert current_id() is None


def test_executor_carries_the_conversation_of_each_submit(pool: ThreadPoolExecutor) -> None:
    carrying = antiphon.carrying(pool)
    assert isinstance(carrying, Executor)
    gate = threading.Event()

    def gated(word: str, *, end: str) -> str:
        assert gate.wait(20)
        return f"{word}{end}{current_id()}"

    futures = []
    for name in ("a", "b", "c"):
        with antiphon.conversation(name):
            futures.append(carrying.submit(gated, "id", end="="))
    gate.set()  # all of them run after their blocks were left
    assert [future.result() for future in futures] == ["id=a", "id=b", "id=c"]


def test_executor_carries_the_conversation_of_a_map(pool: ThreadPoolExecutor) -> None:
    with antiphon.conversation("a"):
        results = antiphon.carrying(pool).map(lambda x, y: (x + y, current_id()), [1, 2], [3, 4], timeout=20)
    assert list(results) == [(4, "a"), (6, "a")]


async def test_event_loop_accepts_the_executor(pool: ThreadPoolExecutor) -> None:
    loop, carrying = asyncio.get_running_loop(), antiphon.carrying(pool)
    loop.set_debug(True)  # asyncio looks at the function then

    async def agent(name: str) -> tuple[str | None, str | None]:
        async with antiphon.conversation(name):
            bare = await loop.run_in_executor(None, current_id)
            own = await loop.run_in_executor(None, antiphon.carry(current_id))
            assert bare is None
            return own, await loop.run_in_executor(carrying, current_id)

    names = [f"agent-{i}" for i in range(8)]
    assert await asyncio.gather(*map(agent, names)) == [(name, name) for name in names]


def test_executor_is_shut_down_with_its_block() -> None:
    pool = ThreadPoolExecutor(1)
    with antiphon.carrying(pool) as carrying:
        assert carrying.submit(current_id).result() is None
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(current_id)


def test_shutdown_hands_its_arguments_on(pool: ThreadPoolExecutor) -> None:
    started, gate = threading.Event(), threading.Event()

    def gated() -> bool:
        started.set()
        return gate.wait(20)

    with ThreadPoolExecutor(1) as single:
        first = single.submit(gated)
        assert started.wait(20)
        waiting = single.submit(current_id)
        antiphon.carrying(single).shutdown(wait=False, cancel_futures=True)
        assert waiting.cancelled()
        gate.set()
        assert first.result()


def test_process_pool_carries_the_id() -> None:
    processes = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    with antiphon.carrying(processes) as pool, antiphon.conversation("a") as conversation:
        assert pool.submit(antiphon.current).result(60) == conversation


def test_conversation_of_a_framework_is_carried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    framework = threading.local()
    monkeypatch.setattr(_ambient, "_resolvers", {})
    monkeypatch.setattr(_ambient, "_awaited", {})
    _ambient.register("framework", lambda block: block or getattr(framework, "conversation", None))
    framework.conversation = antiphon.conversation("of-the-framework")
    assert current_id() == "of-the-framework"
    assert on_a_thread(current_id) is None
    assert on_a_thread(antiphon.carry(current_id)) == "of-the-framework"


def test_carried_function_does_not_end_the_conversation(antiphon_router: FakeRouter) -> None:
    with antiphon.conversation("a") as conversation:
        conversation.seen_by(antiphon.Router(antiphon_router.base_url))
        on_a_thread(antiphon.carry(current_id))
        assert antiphon_router.ends() == []
    assert antiphon_router.ends() == ["a"]
