"""Where the handle event goes in a stream, over ASGI messages and no vLLM."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon_server.engine.stream import end_mark, event, watch, with_notes

HANDLE = {"remote_request_id": "r"}
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class Client:
    """Stands for vLLM's engine client."""

    async def generate(self, handle: dict[str, Any] | None) -> AsyncIterator[Any]:
        yield SimpleNamespace(kv_transfer_params=None, prompt_token_ids=[1, 2, 3], num_cached_tokens=2)
        yield SimpleNamespace(kv_transfer_params=handle, prompt_token_ids=None, num_cached_tokens=None)


async def sent(
    *bodies: bytes, handle: dict[str, Any] | None = None, start: Any = START
) -> list[dict[str, Any]]:
    """What leaves when the engine finishes with ``handle`` and the API server sends ``bodies``."""
    messages: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    client: Any = Client()
    watch(client)
    sending = with_notes(send, b"leg-7")
    async for _ in client.generate(handle):
        pass
    await sending(start)
    for body in bodies:
        await sending({"type": "http.response.body", "body": body, "more_body": True})
    return messages


async def streamed(*bodies: bytes, handle: dict[str, Any] | None = None, start: Any = START) -> bytes:
    """The bytes of it."""
    return b"".join(message.get("body", b"") for message in await sent(*bodies, handle=handle, start=start))


@pytest.mark.parametrize(
    "end", [b"data: [DONE]\n\n", b'event: message_stop\ndata: {"type":"message_stop"}\n\n']
)
async def test_handle_comes_right_before_the_end(end: bytes) -> None:
    assert await streamed(b"data: {}\n\n", end, handle=HANDLE) == b"data: {}\n\n" + event(HANDLE) + end


async def test_handle_comes_before_an_end_that_shares_its_chunk() -> None:
    out = await streamed(b"data: {}\n\ndata: [DONE]\n\n", handle=HANDLE)
    assert out == b"data: {}\n\n" + event(HANDLE) + b"data: [DONE]\n\n"


async def test_answer_that_quotes_the_mark_is_left_whole() -> None:
    quote = b'data: {"content":"data: [DONE] event: message_stop"}\n\n'
    out = await streamed(quote, b"data: [DONE]\n\n", handle=HANDLE)
    assert out == quote + event(HANDLE) + b"data: [DONE]\n\n"


async def test_nothing_is_added_without_a_handle() -> None:
    assert await streamed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"


async def test_head_waits_for_the_prompts_figures() -> None:
    assert await sent() == []
    head, _ = await sent(b"data: {}\n\n")
    assert (b"x-antiphon-prompt", b"tokens=3; cached=2") in head["headers"]


async def test_head_names_the_request_that_it_answers() -> None:
    head, _ = await sent(b"data: {}\n\n")
    assert (b"x-antiphon-leg", b"leg-7") in head["headers"]


async def test_head_without_an_output_is_left_alone() -> None:
    messages: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    sending = with_notes(send, None)
    await sending(START)
    await sending({"type": "http.response.body", "body": b"", "more_body": False})
    assert messages[0] == START


async def test_whole_replies_are_left_alone() -> None:
    start = {**START, "headers": [(b"content-type", b"application/json")]}
    body = b'"\ndata: [DONE]"'
    assert await streamed(body, handle=HANDLE, start=start) == body


def test_mark_counts_only_at_the_start_of_a_line() -> None:
    assert end_mark(b'data: {"a":"data: [DONE]"}\n\n') is None
    assert end_mark(b"data: [DONE]\n\n") == 0
