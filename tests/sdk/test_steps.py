"""Generators whose steps run in a conversation."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

import antiphon


def current_id() -> str | None:
    conversation = antiphon.current()
    return conversation.id if conversation else None


class Turns:
    """Yields the current id, and notes the one it is closed in."""

    def __init__(self) -> None:
        self.closed_in: list[str | None] = []

    def sync(self) -> Iterator[str | None]:
        try:
            while True:
                yield current_id()
        finally:
            self.closed_in.append(current_id())

    async def of_async(self) -> AsyncIterator[str | None]:
        try:
            while True:
                await asyncio.sleep(0)
                yield current_id()
        finally:
            await asyncio.sleep(0)
            self.closed_in.append(current_id())


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_each_step_runs_inside_and_the_consumer_stays_outside(turns: Turns) -> None:
    with antiphon.conversation("outer"):
        steps = antiphon.conversation("inner").steps(turns.sync())
        assert [(next(steps), current_id()) for _ in range(3)] == [("inner", "outer")] * 3
        steps.close()
        assert current_id() == "outer"
    assert turns.closed_in == ["inner"]
    assert current_id() is None


async def test_each_async_step_runs_inside_and_the_consumer_stays_outside(turns: Turns) -> None:
    async with antiphon.conversation("outer"):
        steps = antiphon.conversation("inner").steps(turns.of_async())
        assert [(await anext(steps), current_id()) for _ in range(3)] == [("inner", "outer")] * 3
        await steps.aclose()
        assert current_id() == "outer"
    assert turns.closed_in == ["inner"]
    assert current_id() is None


class Stream:
    """Of a client: iterable either way, no generator."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[str | None]:
        return iter([current_id()] * self.steps)


class AsyncStream(Stream):
    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> str | None:
        if not self.steps:
            raise StopAsyncIteration
        self.steps -= 1
        return current_id()


async def test_what_is_no_generator_has_steps_too() -> None:
    conversation = antiphon.conversation("a")
    assert list(conversation.steps(Stream(2))) == ["a", "a"]
    assert [seen async for seen in conversation.steps(AsyncStream(2))] == ["a", "a"]


def test_error_of_a_step_comes_through(turns: Turns) -> None:
    def failing() -> Iterator[str | None]:
        yield current_id()
        raise LookupError(current_id())

    steps = antiphon.conversation("a").steps(failing())
    assert next(steps) == "a"
    with pytest.raises(LookupError, match="a"):
        next(steps)
    assert current_id() is None


async def test_error_of_an_async_step_comes_through() -> None:
    async def failing() -> AsyncIterator[str | None]:
        yield current_id()
        raise LookupError(current_id())

    steps = antiphon.conversation("a").steps(failing())
    assert await anext(steps) == "a"
    with pytest.raises(LookupError, match="a"):
        await anext(steps)
    assert current_id() is None


def test_blocks_that_the_generator_opens_stay_its_own(turns: Turns) -> None:
    def nested() -> Iterator[str | None]:
        yield current_id()
        with antiphon.conversation("deep"):
            yield current_id()
            yield current_id()
        yield current_id()

    with antiphon.conversation("outer"):
        seen = [(step, current_id()) for step in antiphon.conversation("inner").steps(nested())]
    assert seen == [("inner", "outer"), ("deep", "outer"), ("deep", "outer"), ("inner", "outer")]


def test_two_generators_may_take_turns(turns: Turns) -> None:
    first, second = (antiphon.conversation(name).steps(turns.sync()) for name in "ab")
    assert [(next(first), next(second), current_id()) for _ in range(3)] == [("a", "b", None)] * 3


def test_generator_closed_in_another_context_raises_nothing_and_leaves_nothing_behind(turns: Turns) -> None:
    steps = antiphon.conversation("a").steps(turns.sync())
    assert next(steps) == "a"
    other = contextvars.Context()
    other.run(steps.close)
    assert turns.closed_in == ["a"]
    assert (current_id(), other.run(current_id)) == (None, None)


async def test_async_generator_stepped_and_closed_by_other_tasks_raises_nothing(turns: Turns) -> None:
    steps = antiphon.conversation("a").steps(turns.of_async())

    async def step() -> str | None:
        return await anext(steps)

    async def close() -> str | None:
        await steps.aclose()
        return current_id()

    run = asyncio.get_running_loop().create_task
    assert await run(step(), context=contextvars.Context()) == "a"
    assert await run(step(), context=contextvars.Context()) == "a"
    assert await run(close(), context=contextvars.Context()) is None
    assert turns.closed_in == ["a"]
    assert current_id() is None


async def test_cancelled_step_leaves_nothing_behind() -> None:
    reached = asyncio.Event()
    left: list[str | None] = []

    async def endless() -> AsyncIterator[None]:
        try:
            reached.set()
            await asyncio.Event().wait()
            yield
        finally:
            left.append(current_id())

    async def consumer() -> str | None:
        async with antiphon.conversation("outer"):
            try:
                await anext(antiphon.conversation("inner").steps(endless()))
            except asyncio.CancelledError:
                return current_id()
        raise AssertionError

    task = asyncio.create_task(consumer())
    await reached.wait()
    task.cancel()
    assert await task == "outer"
    assert left == ["inner"]


def test_abandoned_generator_is_closed_inside(turns: Turns) -> None:
    for _ in antiphon.conversation("a").steps(turns.sync()):
        break
    gc.collect()
    assert turns.closed_in == ["a"]
    assert current_id() is None


def test_steps_do_not_end_the_conversation() -> None:
    with antiphon.conversation("a") as conversation:
        assert list(conversation.steps(iter("xy"))) == ["x", "y"]
        assert antiphon.current() is conversation
