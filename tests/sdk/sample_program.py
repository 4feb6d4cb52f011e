"""A program that uses the SDK, for mypy to read: ``assert_type`` says what its user is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import assert_type

import httpx
import httpx2
from langchain.agents import create_agent
from openai import AsyncAzureOpenAI, AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk

import antiphon
import antiphon_openai
from antiphon_langgraph import (
    AntiphonMiddleware,
    VerbatimChatOpenAI,
    chat_openai,
    conversation_node,
    conversation_of,
)


def price(item: str, *, currency: str = "euro") -> float:
    return len(item + currency)


async def stock(item: str) -> int:
    return len(item)


def words() -> Iterator[str]:
    yield "a"


async def awords() -> AsyncIterator[str]:
    yield "a"


def blocks() -> None:
    with antiphon.conversation("a", keep=True) as conversation:
        assert_type(conversation, antiphon.Conversation)
        assert_type(conversation.id, str)
        assert_type(conversation.parent, str | None)
        with conversation.child("search") as child:
            assert_type(child, antiphon.Conversation)
    assert_type(antiphon.current(), antiphon.Conversation | None)
    conversation.id = "b"  # type: ignore[misc]
    antiphon.conversation(1)  # type: ignore[arg-type]


async def async_blocks() -> None:
    async with antiphon.conversation(parent="p") as conversation:
        assert_type(conversation, antiphon.Conversation)


async def carried() -> None:
    carried_price = antiphon.carry(price)
    assert_type(carried_price("hinges", currency="pound"), float)
    assert_type(await antiphon.carry(stock)("hinges"), int)
    carried_price("hinges", colour="red")  # type: ignore[call-arg]
    carried_price(1)  # type: ignore[arg-type]

    with antiphon.carrying(ThreadPoolExecutor()) as pool:
        assert_type(pool, Executor)
        assert_type(pool.submit(price, "hinges"), Future[float])
        assert_type(pool.map(price, ["hinges"]), Iterator[float])
        pool.submit(price, 1)  # type: ignore[arg-type]


async def steps(conversation: antiphon.Conversation) -> None:
    assert_type(conversation.steps(words()), Generator[str, None, None])
    assert_type(conversation.steps([1]), Generator[int, None, None])
    assert_type(conversation.steps(awords()), AsyncGenerator[str, None])
    for word in conversation.steps(words()):
        assert_type(word, str)
    async for word in conversation.steps(awords()):
        assert_type(word, str)
    conversation.steps(1)  # type: ignore[call-overload]


class Gateway(httpx.Client):
    pass


def hooks() -> None:
    assert_type(antiphon.hook(httpx.Client()), httpx.Client)
    assert_type(antiphon.hook(httpx.AsyncClient(), wire="dynamo"), httpx.AsyncClient)
    assert_type(antiphon.hook(httpx2.Client(), wire=antiphon.Wire.headers_only), httpx2.Client)
    assert_type(antiphon.unhook(httpx2.AsyncClient()), httpx2.AsyncClient)
    assert_type(antiphon.hook(Gateway()), Gateway)
    antiphon.hook({})  # type: ignore[type-var]


def wraps(conversation: antiphon.Conversation) -> None:
    assert_type(antiphon_openai.wrap(OpenAI(), conversation=conversation), OpenAI)
    assert_type(antiphon_openai.wrap(AsyncOpenAI()), AsyncOpenAI)
    assert_type(antiphon_openai.unwrap(AsyncAzureOpenAI()), AsyncAzureOpenAI)
    antiphon_openai.wrap(httpx.Client())  # type: ignore[type-var]


def stamps(conversation: antiphon.Conversation) -> None:
    stamp = antiphon.stamp(conversation, turn="t", wire=antiphon.wire_of("default"), headers=["a"])
    assert_type(stamp, antiphon.Stamp)
    assert_type(stamp.headers, dict[str, str])


def loops(conversation: antiphon.Conversation, client: OpenAI) -> None:
    turn = conversation.turn([{"role": "system", "content": "a"}])
    assert_type(turn, antiphon.Turn)
    turn.add_user("b")
    turn.add_reply(client.chat.completions.create(model="m", messages=turn.messages))
    for call in turn.calls:
        assert_type(call, antiphon.ToolCall)
        turn.add_tool_result(call.id, price(**call.parsed()))
    for chunk in turn.read(client.chat.completions.create(model="m", messages=turn.messages, stream=True)):
        assert_type(chunk, ChatCompletionChunk)
    assert_type(turn.stamp(), antiphon.Stamp)
    turn.add_tool_result(1, "c")  # type: ignore[arg-type]


def statistics(conversation: antiphon.Conversation) -> None:
    told = conversation.statistics
    assert_type(told, antiphon.Statistics)
    assert_type(told.last_ttft, float | None)
    assert_type(told.divergence, antiphon.Divergence | None)
    told.turns = 1  # type: ignore[misc]


@conversation_node
def write(state: dict[str, str]) -> dict[str, str]:
    return state


@conversation_node(name="critic")
async def criticise(state: dict[str, str]) -> dict[str, str]:
    return state


async def graphs() -> None:
    assert_type(write({}), dict[str, str])
    assert_type(await criticise({}), dict[str, str])
    assert_type(conversation_of({}), antiphon.Conversation | None)
    model = chat_openai(model="m", conversation=antiphon.conversation("c"))
    assert_type(model, VerbatimChatOpenAI)
    create_agent(model, middleware=[AntiphonMiddleware()])
    write(1)  # type: ignore[arg-type]
