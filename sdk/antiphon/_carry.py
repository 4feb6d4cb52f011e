"""Into threads and executors, which do not take the caller's context variables along."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar, cast

from antiphon._conversation import Conversation, current
from antiphon._scope import Excursion

P = ParamSpec("P")
T = TypeVar("T")


def carry(function: Callable[P, T]) -> Callable[P, T]:
    """The function, to be called on any thread in the conversation that is current now.

    Coroutine functions stay so; the steps of a generator run in the conversation too. Where no conversation
    is current, the function is returned as it is. The block that opened the conversation still ends it,
    finished or not: wait inside for what must be part of it.

    >>> threading.Thread(target=antiphon.carry(search), args=("hinges",)).start()  # doctest: +SKIP
    """
    conversation = current()
    if conversation is None:
        return function
    if inspect.iscoroutinefunction(function):

        async def acarried(*args: Any, **kwargs: Any) -> Any:
            return await _run(conversation, function, *args, **kwargs)

        return cast("Callable[P, T]", wraps(function)(acarried))

    @wraps(function)
    def carried(*args: P.args, **kwargs: P.kwargs) -> T:
        return _run(conversation, function, *args, **kwargs)

    return carried


def carrying(executor: Executor) -> Executor:
    """The executor, with each ``submit`` and ``map`` taking along the conversation that is current then.

    It serves ``loop.run_in_executor`` as well, other than as the loop's default executor: asyncio takes no
    wrapper for that; :func:`carry` the function instead. Leaving its ``with`` block shuts the executor down.

    >>> with antiphon.carrying(ThreadPoolExecutor()) as pool:  # doctest: +SKIP
    ...     pages = list(pool.map(read, urls))
    """
    return _CarryingExecutor(executor)


class _CarryingExecutor(Executor):
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._executor.submit(_carried(fn), *args, **kwargs)

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], **options: Any) -> Iterator[T]:
        return self._executor.map(_carried(fn), *iterables, **options)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


def _carried(function: Callable[P, T]) -> Callable[P, T]:
    """:func:`carry` without closures, so that it reaches the processes of a ProcessPoolExecutor."""
    conversation = current()
    return function if conversation is None else partial(_run, conversation, function)


def _run(conversation: Conversation, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    with Excursion(conversation):
        result: Any = function(*args, **kwargs)
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        result = conversation.steps(result)
    elif inspect.iscoroutine(result):
        result = _awaited(conversation, result)
    return cast("T", result)


async def _awaited(conversation: Conversation, coroutine: Coroutine[Any, Any, T]) -> T:
    with Excursion(conversation):
        return await coroutine
