"""Generators, each of whose steps runs in a conversation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from antiphon._scope import Excursion

if TYPE_CHECKING:
    from antiphon._conversation import Conversation

T = TypeVar("T")


def steps(conversation: Conversation, iterable: Iterable[T]) -> Generator[T, None, None]:
    excursion = Excursion(conversation)
    with excursion:
        iterator = iter(iterable)
    try:
        while True:
            with excursion:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
    finally:
        close: Any = getattr(iterator, "close", None)
        if close is not None:
            with excursion:
                close()


async def asteps(conversation: Conversation, iterable: AsyncIterable[T]) -> AsyncGenerator[T, None]:
    excursion = Excursion(conversation)
    with excursion:
        iterator = aiter(iterable)
    try:
        while True:
            with excursion:
                try:
                    item = await anext(iterator)
                except StopAsyncIteration:
                    return
            yield item
    finally:
        aclose: Any = getattr(iterator, "aclose", None)
        if aclose is not None:
            with excursion:
                await aclose()
