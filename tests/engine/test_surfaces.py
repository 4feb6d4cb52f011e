"""Responses and messages on real engines: through both legs, as exact as chat."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from rig.answers import MODEL
from rig.fleet import CACHED, Pair

pytestmark = pytest.mark.engine

SYSTEM = "You are an agent that answers in short letters. " * 4
FIRST = "Name the first letters, please, and take your time."
NEXT = "And the next ones, with the same care, if you would be so kind?"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def pulling(pairs: Mapping[str, Pair]) -> Iterator[tuple[Pair, httpx.Client]]:
    """A pair, and a client of its router."""
    pair = pairs[CACHED]
    with httpx.Client(base_url=pair.router, timeout=300, trust_env=False) as client:
        yield pair, client


def responses(*items: Any, salt: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "instructions": SYSTEM, "input": [{"role": "user", "content": FIRST}, *items]}
    return {**body, "max_output_tokens": 60, "temperature": 0, "cache_salt": salt, **more}


def messages(*items: Any, salt: str, **more: Any) -> dict[str, Any]:
    body = {"model": MODEL, "system": SYSTEM, "messages": [{"role": "user", "content": FIRST}, *items]}
    return {**body, "max_tokens": 60, "temperature": 0, "cache_salt": salt, **more}


def last(text: str) -> list[dict[str, Any]]:
    return [json.loads(part.partition("data: ")[2]) for part in text.split("\n\n")[:-1]]


def ask(
    client: httpx.Client, path: str, body: dict[str, Any], conversation: str
) -> tuple[Any, httpx.Headers]:
    reply = client.post(path, json=body, headers={"x-session-id": conversation})
    assert reply.status_code == 200, reply.text
    assert "kv_transfer_params" not in reply.text
    return (last(reply.text) if body.get("stream") else reply.json()), reply.headers


def plain(pair: Pair, path: str, body: dict[str, Any]) -> Any:
    """Full recomputation, by decode alone."""
    fresh = {**body, "cache_salt": uuid.uuid4().hex, "stream": False}
    reply = httpx.post(pair.decode + path, json=fresh, timeout=300, trust_env=False)
    assert reply.status_code == 200, reply.text
    return reply.json()


def reused(headers: httpx.Headers) -> int:
    parts = dict(part.strip().split("=") for part in headers["x-antiphon-reuse"].split(";"))
    assert parts["path"] == "reuse", parts
    return int(parts["matched"])


@streaming
def test_responses_reuse_and_answer_as_recomputation(
    pulling: tuple[Pair, httpx.Client], stream: bool, salt: str
) -> None:
    pair, client = pulling
    path, conversation = "/v1/responses", uuid.uuid4().hex

    def text_of(reply: Any) -> str:
        response = reply[-1]["response"] if stream and isinstance(reply, list) else reply
        return "".join(part["text"] for item in response["output"] for part in item["content"])

    first = responses(salt=salt, stream=stream)
    answer, _ = ask(client, path, first, conversation)
    assert text_of(answer) == text_of(plain(pair, path, first))
    said = {"role": "assistant", "content": text_of(answer)}
    second = responses(said, {"role": "user", "content": NEXT}, salt=salt, stream=stream)
    answer, headers = ask(client, path, second, conversation)
    assert reused(headers) > 300
    assert text_of(answer) == text_of(plain(pair, path, second))


@streaming
def test_messages_reuse_and_answer_as_recomputation(
    pulling: tuple[Pair, httpx.Client], stream: bool, salt: str
) -> None:
    pair, client = pulling
    path, conversation = "/v1/messages", uuid.uuid4().hex

    def text_of(reply: Any) -> str:
        if isinstance(reply, list):
            assert reply[-1] == {"type": "message_stop"}
            return "".join(event.get("delta", {}).get("text") or "" for event in reply)
        return "".join(block["text"] for block in reply["content"])

    first = messages(salt=salt, stream=stream)
    answer, _ = ask(client, path, first, conversation)
    assert text_of(answer) == text_of(plain(pair, path, first))
    said = {"role": "assistant", "content": text_of(answer)}
    second = messages(said, {"role": "user", "content": NEXT}, salt=salt, stream=stream)
    answer, headers = ask(client, path, second, conversation)
    assert reused(headers) > 300
    assert text_of(answer) == text_of(plain(pair, path, second))


@streaming
def test_forced_calls_come_through_on_both(
    pulling: tuple[Pair, httpx.Client], stream: bool, salt: str
) -> None:
    _, client = pulling
    function = {"name": "look", "strict": True}
    asked: dict[str, Any] = {
        "tools": [{"type": "function", **function, "parameters": SCHEMA}],
        "tool_choice": {"type": "function", "name": "look"},
        "max_output_tokens": 400,
    }
    answer, _ = ask(client, "/v1/responses", responses(salt=salt, stream=stream, **asked), uuid.uuid4().hex)
    (call,) = (answer[-1]["response"] if stream else answer)["output"]
    assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"city": "Rome"})
    asked = {
        "tools": [{**function, "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "look"},
        "max_tokens": 400,
    }
    answer, _ = ask(client, "/v1/messages", messages(salt=salt, stream=stream, **asked), uuid.uuid4().hex)
    if stream:
        raw = "".join(event.get("delta", {}).get("partial_json") or "" for event in answer)
    else:
        (block,) = answer["content"]
        raw = json.dumps(block["input"])
    assert json.loads(raw) == {"city": "Rome"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_model_of_text_refuses_images_by_itself(pulling: tuple[Pair, httpx.Client], path: str) -> None:
    """So the router need not search histories for them; and no engine is blamed."""
    pair, client = pulling
    for engine in (pair.prefill, pair.decode):
        assert httpx.get(f"{engine}/antiphon/info", trust_env=False).json()["text_only"] is True
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    if path == "/v1/messages":
        source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
        image = {"type": "image", "source": source}
    content = [{"type": "text", "text": "What is it?"}, image]
    body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    for _ in range(6):
        reply = client.post(path, json=body)
        assert (reply.status_code, "multimodal" in reply.text) == (400, True)
    ask(client, "/v1/messages", messages(salt=uuid.uuid4().hex), uuid.uuid4().hex)
