"""What is stamped, and with what; the forms of a call are in ``test_openai_matrix``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import antiphon
import antiphon_openai
from antiphon.testing import FakeRouter

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def client(antiphon_router: FakeRouter) -> Iterator[OpenAI]:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k", max_retries=2) as client:
        yield antiphon_openai.wrap(client)


def test_tool_result_resubmission_is_a_new_turn_of_the_same_conversation(
    antiphon_router: FakeRouter, client: OpenAI
) -> None:
    with antiphon.conversation():
        for _ in range(3):
            client.chat.completions.create(**CHAT)
    calls = antiphon_router.calls()
    assert len({call.headers["x-session-id"] for call in calls}) == 1
    assert len({call.headers["x-turn-id"] for call in calls}) == 3
    assert len(antiphon_router.ends()) == 1


def test_idempotency_key_of_the_caller_is_the_turn_id(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, body=CHAT, options={"idempotency_key": "mine"})
    assert antiphon_router.calls()[0].headers["x-turn-id"] == "mine"


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
    antiphon_router: FakeRouter, client: OpenAI, call: Callable[[Any], object]
) -> None:
    with antiphon.conversation("c"), contextlib.suppress(openai.NotFoundError):
        call(client)
    [request] = antiphon_router.requests
    assert not {"x-session-id", "x-turn-id"} & set(request.headers)
    assert "conversation_id" not in (request.body or {})


def test_call_outside_any_conversation_is_not_stamped(antiphon_router: FakeRouter, client: OpenAI) -> None:
    client.chat.completions.create(**CHAT)
    [request] = antiphon_router.requests
    assert request.body == CHAT
    assert not {"x-session-id", "x-turn-id"} & set(request.headers)


def test_stream_manager_belongs_to_the_block_where_it_is_entered(
    antiphon_router: FakeRouter, client: OpenAI
) -> None:
    with antiphon.conversation("c"):
        manager = client.chat.completions.stream(**CHAT)
    with antiphon.conversation("d"), manager as stream:
        stream.until_done()
    assert [call.conversation for call in antiphon_router.calls()] == ["d"]


async def test_async_stream_manager_belongs_to_the_block_where_it_is_entered(
    antiphon_router: FakeRouter,
) -> None:
    async with antiphon_openai.wrap(AsyncOpenAI(base_url=antiphon_router.base_url, api_key="k")) as client:
        async with antiphon.conversation("c"):
            manager = client.chat.completions.stream(**CHAT)
        async with antiphon.conversation("d"), manager as stream:
            await stream.until_done()
    assert [call.conversation for call in antiphon_router.calls()] == ["d"]


def test_body_of_raw_bytes_is_stamped_by_headers_alone(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, content=b'{"model": "m"}')
    [call] = antiphon_router.calls()
    assert (call.headers["x-session-id"], call.body) == ("c", {"model": "m"})


def test_multipart_body_is_stamped_by_headers_alone(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        options: Any = {"headers": {"Content-Type": "multipart/form-data"}}
        files = {"file": b"opaque"}
        client.post("/chat/completions", cast_to=object, body={"model": "m"}, files=files, options=options)
    [call] = antiphon_router.calls()
    assert call.headers["x-session-id"] == "c"
    assert b"conversation_id" not in call.body
