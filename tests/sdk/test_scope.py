from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import AsyncIterator, Iterator

import antiphon
from antiphon._scope import Scope


def current_id() -> str | None:
    conversation = antiphon.current()
    return conversation.id if conversation else None


def test_block_sets_the_current_conversation_and_restores_the_outer_one() -> None:
    assert current_id() is None
    with antiphon.conversation("a") as a:
        assert antiphon.current() is a
        with antiphon.conversation("b"):
            assert current_id() == "b"
        assert current_id() == "a"
    assert current_id() is None


def test_block_is_left_on_an_error_too() -> None:
    try:
        with antiphon.conversation("a"):
            raise LookupError
    except LookupError:
        pass
    assert current_id() is None


def test_one_conversation_may_be_entered_again_inside_itself() -> None:
    a = antiphon.conversation("a")
    with a:
        with a:
            pass
        assert current_id() == "a"
    assert current_id() is None


def test_blocks_may_be_left_out_of_order() -> None:
    a, b = antiphon.conversation("a"), antiphon.conversation("b")
    a.__enter__()
    b.__enter__()
    a.__exit__(None, None, None)
    assert current_id() == "b"
    b.__exit__(None, None, None)
    assert current_id() is None


async def test_async_block_works_the_same() -> None:
    async with antiphon.conversation("a"):
        assert current_id() == "a"
    assert current_id() is None


async def test_each_task_sees_its_own_conversation() -> None:
    everyone_in = asyncio.Barrier(8)

    async def agent(name: str) -> str | None:
        async with antiphon.conversation(name):
            await everyone_in.wait()
            return current_id()

    names = [f"agent-{i}" for i in range(8)]
    assert await asyncio.gather(*map(agent, names)) == names


def test_each_thread_sees_its_own_conversation() -> None:
    everyone_in = threading.Barrier(8, timeout=20)
    seen: dict[str, str | None] = {}

    def agent(name: str) -> None:
        with antiphon.conversation(name):
            everyone_in.wait()
            seen[name] = current_id()

    threads = [threading.Thread(target=agent, args=(f"agent-{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {f"agent-{i}": f"agent-{i}" for i in range(8)}


async def test_one_conversation_entered_by_two_tasks_at_once_is_left_by_each_alone() -> None:
    shared = antiphon.conversation("shared")
    both_in, first_out = asyncio.Barrier(2), asyncio.Event()

    async def first() -> None:
        async with shared:
            await both_in.wait()
        assert current_id() is None
        first_out.set()

    async def second() -> str | None:
        async with shared:
            await both_in.wait()
            await first_out.wait()
            return current_id()

    _, seen = await asyncio.gather(first(), second())
    assert seen == "shared"


async def test_task_that_outlives_the_block_keeps_its_conversation() -> None:
    left = asyncio.Event()

    async def straggler() -> str | None:
        await left.wait()
        return current_id()

    async with antiphon.conversation("a"):
        task = asyncio.create_task(straggler())
    left.set()
    assert await task == "a"


async def speak() -> AsyncIterator[str | None]:
    async with antiphon.conversation("inside"):
        yield current_id()
        yield current_id()


async def test_async_generator_closed_by_another_task_raises_nothing_and_leaves_nothing_behind() -> None:
    generator = speak()
    assert await anext(generator) == "inside"

    async def closer() -> None:
        await generator.aclose()  # type: ignore[attr-defined]

    await asyncio.get_running_loop().create_task(closer(), context=contextvars.Context())
    assert current_id() is None


async def test_async_generator_closed_by_a_task_that_inherited_its_scope_leaves_nothing_behind() -> None:
    generator = speak()
    assert await anext(generator) == "inside"

    async def closer() -> None:
        await generator.aclose()  # type: ignore[attr-defined]

    await asyncio.create_task(closer())
    assert current_id() is None


def test_generator_closed_in_another_context_raises_nothing_and_leaves_nothing_behind() -> None:
    def turns() -> Iterator[str | None]:
        with antiphon.conversation("inside"):
            yield current_id()

    generator = turns()
    assert next(generator) == "inside"
    contextvars.Context().run(generator.close)  # type: ignore[attr-defined]
    assert current_id() is None


def test_generators_closed_elsewhere_do_not_pile_up_in_a_context() -> None:
    def turns() -> Iterator[None]:
        with antiphon.conversation("inside"):
            yield

    def scopes() -> int:
        gc.collect()
        return sum(type(thing) is Scope for thing in gc.get_objects())  # isinstance() would wake lazy ones

    before = scopes()
    for _ in range(20):
        generator = turns()
        next(generator)
        contextvars.Context().run(generator.close)  # type: ignore[attr-defined]
    assert scopes() <= before + 2
