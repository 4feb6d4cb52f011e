"""Every way of making a model call, sync and async, against a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

import antiphon
import antiphon_openai
from doubles.router import Double

HELLO: Any = [{"role": "user", "content": "hello"}]
CHAT: Any = {"model": "m", "messages": HELLO}
TEXT: Any = {"model": "m", "prompt": "hello"}
RESPONSE: Any = {"model": "m", "input": "hello"}


class City(pydantic.BaseModel):
    city: str


@pytest.fixture
def client(double: Double) -> Iterator[OpenAI]:
    with OpenAI(base_url=double.base_url, api_key="k", max_retries=2) as client:
        yield antiphon_openai.wrap(client)


@pytest.fixture
async def aclient(double: Double) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=double.base_url, api_key="k", max_retries=2) as client:
        yield antiphon_openai.wrap(client)


def chat_stream_manager(client: OpenAI) -> None:
    with client.chat.completions.stream(**CHAT) as stream:
        list(stream)


def responses_stream_manager(client: OpenAI) -> None:
    with client.responses.stream(**RESPONSE) as stream:
        list(stream)


def chat_streaming_raw(client: OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(**CHAT) as response:
        response.read()


def responses_streaming_raw(client: OpenAI) -> None:
    with client.responses.with_streaming_response.create(**RESPONSE) as response:
        response.read()


SYNC: dict[str, tuple[str, Callable[[OpenAI], object]]] = {
    "chat create": ("chat/completions", lambda c: c.chat.completions.create(**CHAT)),
    "chat stream": ("chat/completions", lambda c: list(c.chat.completions.create(**CHAT, stream=True))),
    "chat .stream()": ("chat/completions", chat_stream_manager),
    "chat .parse": ("chat/completions", lambda c: c.chat.completions.parse(**CHAT, response_format=City)),
    "chat raw": ("chat/completions", lambda c: c.chat.completions.with_raw_response.create(**CHAT)),
    "chat streaming raw": ("chat/completions", chat_streaming_raw),
    "completions create": ("completions", lambda c: c.completions.create(**TEXT)),
    "completions stream": ("completions", lambda c: list(c.completions.create(**TEXT, stream=True))),
    "completions raw": ("completions", lambda c: c.completions.with_raw_response.create(**TEXT)),
    "responses create": ("responses", lambda c: c.responses.create(**RESPONSE)),
    "responses stream": ("responses", lambda c: list(c.responses.create(**RESPONSE, stream=True))),
    "responses .stream()": ("responses", responses_stream_manager),
    "responses .parse": ("responses", lambda c: c.responses.parse(**RESPONSE, text_format=City)),
    "responses raw": ("responses", lambda c: c.responses.with_raw_response.create(**RESPONSE)),
    "responses streaming raw": ("responses", responses_streaming_raw),
    "post": ("chat/completions", lambda c: c.post("/chat/completions", cast_to=object, body=CHAT)),
    "post messages": ("messages", lambda c: c.post("/messages", cast_to=object, body=CHAT)),
    "with_options": (
        "chat/completions",
        lambda c: c.with_options(timeout=9).chat.completions.create(**CHAT),
    ),
    "copy": ("chat/completions", lambda c: c.copy(max_retries=1).chat.completions.create(**CHAT)),
}


async def achat_stream(client: AsyncOpenAI) -> None:
    async for _ in await client.chat.completions.create(**CHAT, stream=True):
        pass


async def achat_stream_manager(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(**CHAT) as stream:
        async for _ in stream:
            pass


async def achat_streaming_raw(client: AsyncOpenAI) -> None:
    async with client.chat.completions.with_streaming_response.create(**CHAT) as response:
        await response.read()


async def acompletions_stream(client: AsyncOpenAI) -> None:
    async for _ in await client.completions.create(**TEXT, stream=True):
        pass


async def aresponses_stream(client: AsyncOpenAI) -> None:
    async for _ in await client.responses.create(**RESPONSE, stream=True):
        pass


async def aresponses_stream_manager(client: AsyncOpenAI) -> None:
    async with client.responses.stream(**RESPONSE) as stream:
        async for _ in stream:
            pass


async def aresponses_streaming_raw(client: AsyncOpenAI) -> None:
    async with client.responses.with_streaming_response.create(**RESPONSE) as response:
        await response.read()


ASYNC: dict[str, tuple[str, Callable[[AsyncOpenAI], Awaitable[object]]]] = {
    "chat create": ("chat/completions", lambda c: c.chat.completions.create(**CHAT)),
    "chat stream": ("chat/completions", achat_stream),
    "chat .stream()": ("chat/completions", achat_stream_manager),
    "chat .parse": ("chat/completions", lambda c: c.chat.completions.parse(**CHAT, response_format=City)),
    "chat raw": ("chat/completions", lambda c: c.chat.completions.with_raw_response.create(**CHAT)),
    "chat streaming raw": ("chat/completions", achat_streaming_raw),
    "completions create": ("completions", lambda c: c.completions.create(**TEXT)),
    "completions stream": ("completions", acompletions_stream),
    "completions raw": ("completions", lambda c: c.completions.with_raw_response.create(**TEXT)),
    "responses create": ("responses", lambda c: c.responses.create(**RESPONSE)),
    "responses stream": ("responses", aresponses_stream),
    "responses .stream()": ("responses", aresponses_stream_manager),
    "responses .parse": ("responses", lambda c: c.responses.parse(**RESPONSE, text_format=City)),
    "responses raw": ("responses", lambda c: c.responses.with_raw_response.create(**RESPONSE)),
    "responses streaming raw": ("responses", aresponses_streaming_raw),
    "post": ("chat/completions", lambda c: c.post("/chat/completions", cast_to=object, body=CHAT)),
    "post messages": ("messages", lambda c: c.post("/messages", cast_to=object, body=CHAT)),
    "with_options": (
        "chat/completions",
        lambda c: c.with_options(timeout=9).chat.completions.create(**CHAT),
    ),
    "copy": ("chat/completions", lambda c: c.copy(max_retries=1).chat.completions.create(**CHAT)),
}


def assert_stamped_and_ended(double: Double, path: str) -> None:
    [call] = double.calls()
    assert call.path == f"/v1/{path}"
    assert call.body["conversation_id"] == "c"
    assert call.headers["x-session-id"] == "c"
    assert call.headers["x-parent-session-id"] == "p"
    assert len(call.headers["x-turn-id"]) == 36
    assert double.ends() == ["/v1/conversations/c"]
    assert double.requests[-1].headers["authorization"] == "Bearer k"


@pytest.mark.parametrize("way", SYNC)
def test_call_is_stamped_and_its_conversation_ended(double: Double, client: OpenAI, way: str) -> None:
    path, call = SYNC[way]
    with antiphon.conversation("c", parent="p"):
        call(client)
    assert_stamped_and_ended(double, path)


@pytest.mark.parametrize("way", ASYNC)
async def test_async_call_is_stamped_and_its_conversation_ended(
    double: Double, aclient: AsyncOpenAI, way: str
) -> None:
    path, call = ASYNC[way]
    async with antiphon.conversation("c", parent="p"):
        await call(aclient)
    assert_stamped_and_ended(double, path)


def test_retries_carry_the_same_turn_id(double: Double, client: OpenAI) -> None:
    double.statuses.extend([500, 500])
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT)
    calls = double.calls()
    assert len(calls) == 3
    assert len({call.headers["x-turn-id"] for call in calls}) == 1
    assert {call.body["conversation_id"] for call in calls} == {"c"}
    assert [call.headers["x-stainless-retry-count"] for call in calls] == ["0", "1", "2"]


async def test_async_retries_carry_the_same_turn_id(double: Double, aclient: AsyncOpenAI) -> None:
    double.statuses.append(500)
    async with antiphon.conversation("c"):
        await achat_stream(aclient)
    calls = double.calls()
    assert len(calls) == 2
    assert len({call.headers["x-turn-id"] for call in calls}) == 1


def test_tool_result_resubmission_is_a_new_turn_of_the_same_conversation(
    double: Double, client: OpenAI
) -> None:
    with antiphon.conversation():
        for _ in range(3):
            client.chat.completions.create(**CHAT)
    calls = double.calls()
    assert len({call.headers["x-session-id"] for call in calls}) == 1
    assert len({call.headers["x-turn-id"] for call in calls}) == 3
    assert len(double.ends()) == 1


def test_idempotency_key_of_the_caller_is_the_turn_id(double: Double, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, body=CHAT, options={"idempotency_key": "mine"})
    assert double.calls()[0].headers["x-turn-id"] == "mine"


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.models.list(),
        lambda c: c.embeddings.create(model="m", input="hello", encoding_format="float"),
        lambda c: c.get("/chat/completions", cast_to=object),
        lambda c: c.post("/threads/t/messages", cast_to=object, body={}),
        lambda c: c.post("/tokenize", cast_to=object, body={}),
    ],
)
def test_other_requests_are_not_stamped(
    double: Double, client: OpenAI, call: Callable[[Any], object]
) -> None:
    with antiphon.conversation("c"):
        call(client)
    [request] = double.requests
    assert not {"x-session-id", "x-turn-id"} & set(request.headers)
    assert "conversation_id" not in (request.body or {})


def test_call_outside_any_conversation_is_not_stamped(double: Double, client: OpenAI) -> None:
    client.chat.completions.create(**CHAT)
    [request] = double.requests
    assert request.body == CHAT
    assert not {"x-session-id", "x-turn-id"} & set(request.headers)


def test_body_of_raw_bytes_is_stamped_by_headers_alone(double: Double, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, content=b'{"model": "m"}')
    [call] = double.calls()
    assert (call.headers["x-session-id"], call.body) == ("c", {"model": "m"})


def test_multipart_body_is_stamped_by_headers_alone(double: Double, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        options: Any = {"headers": {"Content-Type": "multipart/form-data"}}
        files = {"file": b"opaque"}
        client.post("/chat/completions", cast_to=object, body={"model": "m"}, files=files, options=options)
    [call] = double.calls()
    assert call.headers["x-session-id"] == "c"
    assert b"conversation_id" not in call.body
