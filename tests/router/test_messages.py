"""``/v1/messages`` through the router: Anthropic's words, the same reuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon_server.simulator import expected_text
from rig.answers import parse_reuse

PATH = "/v1/messages"
SYSTEM = "You are an agent that answers in short letters. " * 3
TOOLS = [
    {
        "name": "look",
        "input_schema": {
            "type": "object",
            "properties": {"at": {"type": "string"}, "deep": {"type": "boolean"}},
        },
    }
]


def body(*messages: Any, **more: Any) -> dict[str, Any]:
    opening = {"role": "user", "content": "Name the first letters, please, and take your time."}
    base = {"model": "simulated", "system": SYSTEM, "max_tokens": 120}
    return {**base, "messages": [opening, *messages], **more}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def events(text: str) -> list[dict[str, Any]]:
    found = []
    for part in text.split("\n\n")[:-1]:
        name, _, data = part.partition("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def gathered(text: str) -> dict[str, Any]:
    """A streamed message put together, as Anthropic's client does it."""
    message: dict[str, Any] = {}
    for event in events(text):
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append({**event["content_block"], "json": ""})
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                field = {
                    "text_delta": "text",
                    "thinking_delta": "thinking",
                    "input_json_delta": "partial_json",
                }
                name = field[delta["type"]]
                into = "json" if name == "partial_json" else name
                block[into] += delta[name]
            case "message_delta":
                message |= {"stop_reason": event["delta"]["stop_reason"], "usage": event["usage"]}
    for block in message["content"]:
        raw = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(raw)
    return message


def shown(message: dict[str, Any]) -> str:
    text = ""
    for block in message["content"]:
        match block["type"]:
            case "tool_use":
                text += json.dumps(block["input"])
            case kind:
                text += block["thinking" if kind == "thinking" else "text"]
    return text


async def ask(rig: Any, request: dict[str, Any], conversation: str | None = None) -> Any:
    """One turn; its answer must be that of full recomputation. Returns the message and its head."""
    headers = {} if conversation is None else {"x-session-id": conversation}
    reply = await rig.client.post(PATH, json=request, headers=headers)
    assert reply.status_code == 200, reply.text
    assert "kv_transfer_params" not in reply.text
    message = gathered(reply.text) if request.get("stream") else reply.json()
    assert shown(message) == expected_text(rig.decode[0].settings, request, "messages")
    return message, reply.headers


def reuse(headers: Any) -> tuple[str, str]:
    parts = parse_reuse(headers["x-antiphon-reuse"])
    return parts["path"], parts["reason"]


@pytest.mark.parametrize("stream", [False, True])
async def test_conversation_reuses_turn_by_turn(start: Any, stream: bool) -> None:
    rig = await start(router={"paths": ["cold", "reuse"]})
    first, headers = await ask(rig, body(stream=stream), "c")
    assert reuse(headers) == ("cold", "first")
    history = [{"role": "assistant", "content": first["content"]}, user("And the next ones?")]
    second, headers = await ask(rig, body(*history, stream=stream), "c")
    assert reuse(headers) == ("reuse", "full")
    assert second["usage"]["cache_read_input_tokens"] > 200
    assert [leg["max_tokens"] for leg in rig.legs(rig.prefill[0])] == [1, 1]


@pytest.mark.parametrize("stream", [False, True])
async def test_changed_history_answers_as_full_recomputation(start: Any, stream: bool) -> None:
    rig = await start()
    first, _ = await ask(rig, body(stream=stream), "c")
    more = user("And the next ones?")
    said = {"role": "assistant", "content": first["content"]}
    await ask(rig, body({"role": "assistant", "content": "never said"}, more, stream=stream), "c")
    await ask(rig, {**body(said, more, stream=stream), "system": "Be another."}, "c")
    await ask(rig, body(said, more, stream=stream))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look"}])
async def test_tool_round_with_thinking_reuses(start: Any, choice: dict[str, str], stream: bool) -> None:
    rig = await start(decode={"reasoning_tokens": 12}, router={"paths": ["cold", "reuse"]})
    first, _ = await ask(rig, body(tools=TOOLS, tool_choice=choice, stream=stream), "c")
    thought, call = first["content"]
    assert (thought["type"], call["type"], call["name"]) == ("thinking", "tool_use", "look")
    assert first["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "nothing to see " * 8}
    turns = [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    _, headers = await ask(rig, body(*turns, tools=TOOLS, stream=stream), "c")
    assert reuse(headers)[0] == "reuse"
    assert ["tool_choice" in leg for leg in rig.legs(rig.prefill[0])] == [False, False]


async def test_media_goes_to_decode_alone(start: Any) -> None:
    rig = await start()
    image = {"role": "user", "content": [{"type": "image", "source": {}}, {"type": "text", "text": "What?"}]}
    reply = await rig.client.post(PATH, json=body(image))
    assert reuse(reply.headers) == ("cold", "media")
    assert rig.legs(rig.prefill[0]) == []


@pytest.mark.parametrize("stream", [False, True])
async def test_router_refuses_in_anthropics_form(start: Any, stream: bool, settled: Any) -> None:
    rig = await start(router={"probe_interval": 0.05})
    await rig.kill(rig.decode[0])
    await settled(lambda: not rig.state.workers.decode[0].healthy)
    reply = await rig.client.post(PATH, json=body(stream=stream))
    assert reply.status_code == 503
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "overloaded_error"
    assert "decode" in reply.json()["error"]["message"]
    reply = await rig.client.get(PATH)
    assert (reply.status_code, reply.json()["type"]) == (405, "error")
    reply = await rig.client.post(PATH, content=b"[]")
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_engines_refusal_is_passed_on_untouched(start: Any) -> None:
    rig = await start()
    reply = await rig.client.post(PATH, json={**body(), "model": "nope"})
    error = {"type": "NotFoundError", "message": "The model `nope` does not exist."}
    assert (reply.status_code, reply.json()) == (404, {"type": "error", "error": error})


async def test_broken_stream_ends_with_an_error_event_in_this_surfaces_form(start: Any, fault: Any) -> None:
    rig = await start()
    rig.decode[0].faults.add(fault(kind="cut", chunks=6, path=PATH))
    reply = await rig.client.post(PATH, json=body(stream=True))
    *rest, error = events(reply.text)
    assert rest[0]["type"] == "message_start"
    assert error["type"] == "error"
    assert error["error"]["type"] == "api_error"
    assert "decode engine" in error["error"]["message"]


async def test_stream_that_breaks_after_its_end_is_whole(start: Any, fault: Any) -> None:
    rig = await start(decode={"answer_tokens": 2})
    whole = await rig.client.post(PATH, json=body(stream=True))
    count = len(events(whole.text))
    rig.decode[0].faults.add(fault(kind="cut", chunks=count, path=PATH))
    reply = await rig.client.post(PATH, json=body(stream=True))
    assert events(reply.text)[-1] == {"type": "message_stop"}
    assert rig.count("antiphon_handles_total", event="captured") == 2
