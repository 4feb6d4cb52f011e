"""The simulated engine calls tools by itself, as a model in an agent's loop does."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from antiphon_server.simulator import (
    Settings,
    SimulatedCluster,
    SimulatedEngine,
    app,
    expected_ids,
    expected_text,
)

CHAT = "/v1/chat/completions"
COLD = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
ASKED = {"role": "user", "content": "How far is it from Ulm to Bonn? " * 5}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


TOOLS = [
    tool("look", place={"type": "string"}, unit={"type": "string", "enum": ["km", "miles"]}),
    tool("measure", times={"type": "integer", "enum": [3, 5]}),
]


async def post(engine: SimulatedEngine, path: str, body: dict[str, Any]) -> httpx.Response:
    transport = httpx.ASGITransport(app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", verify=False) as http:
        reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply


async def message_of(engine: SimulatedEngine, messages: list[Any], **more: Any) -> dict[str, Any]:
    reply = await post(engine, CHAT, {"messages": messages, "tools": TOOLS, **more})
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == ("tool_calls" if choice["message"]["tool_calls"] else "stop")
    message: dict[str, Any] = choice["message"]
    return message


def result(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "145"}


async def test_one_tool_after_the_other_is_called_and_then_the_model_answers() -> None:
    engine = SimulatedEngine(Settings(tool_turns=2))
    messages: list[Any] = [ASKED]
    called = []
    for _ in range(2):
        message = await message_of(engine, messages)
        (call,) = message["tool_calls"]
        called.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
        messages += [message, result(message)]
    (look, place), measure = called
    assert (look, list(place), place["unit"]) == ("look", ["place", "unit"], "km")
    assert measure == ("measure", {"times": 3})
    answer = await message_of(engine, messages)
    assert (answer["tool_calls"], len(answer["content"])) == ([], engine.settings.answer_tokens)


async def test_next_question_begins_the_calls_anew() -> None:
    engine = SimulatedEngine(Settings(tool_turns=1))
    message = await message_of(engine, [ASKED])
    history = [ASKED, message, result(message)]
    assert not (await message_of(engine, history))["tool_calls"]
    again = [*history, {"role": "assistant", "content": "145"}, ASKED]
    assert (await message_of(engine, again))["tool_calls"]


@pytest.mark.parametrize("more", [{"tool_choice": "none"}, {"tools": None}, {"tools": []}])
async def test_nothing_is_called_where_nothing_may_be(more: dict[str, Any]) -> None:
    assert not (await message_of(SimulatedEngine(Settings(tool_turns=2)), [ASKED], **more))["tool_calls"]


async def test_call_depends_on_the_kv_that_was_used() -> None:
    async def called(asked: dict[str, Any]) -> list[int]:
        """Ids of a call, decode using the KV of another question without looking at it."""
        cluster = SimulatedCluster()
        prefill = SimulatedEngine(Settings(role="prefill", tool_turns=1, threshold=0), cluster=cluster)
        decode = SimulatedEngine(Settings(tool_turns=1, check=False), cluster=cluster)
        body = {"messages": [asked], "tools": TOOLS}
        filled = (await post(prefill, CHAT, {**body, "max_tokens": 1, "kv_transfer_params": COLD})).json()
        ours = {"messages": [ASKED], "tools": TOOLS, "return_token_ids": True}
        handed = {**ours, "kv_transfer_params": filled["kv_transfer_params"]}
        ids: list[int] = (await post(decode, CHAT, handed)).json()["choices"][0]["token_ids"]
        assert (ids == expected_ids(decode.settings, ours)) is (asked == ASKED)
        return ids

    assert await called(ASKED) != await called({**ASKED, "content": ASKED["content"].replace("Ulm", "Elm")})


async def test_streamed_call_says_what_the_whole_one_says() -> None:
    engine = SimulatedEngine(Settings(tool_turns=1))
    body = {"messages": [ASKED], "tools": TOOLS, "stream": True}
    lines = (await post(engine, CHAT, body)).text.split("\n\n")
    choices = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls", ())]
    (whole,) = (await message_of(engine, [ASKED]))["tool_calls"]
    assert parts[0]["function"]["name"] == whole["function"]["name"]
    assert "".join(part["function"]["arguments"] for part in parts) == whole["function"]["arguments"]
    assert choices[-1]["finish_reason"] == "tool_calls"


async def test_messages_surface_calls_too() -> None:
    engine = SimulatedEngine(Settings(tool_turns=1))
    tools = [{"name": "look", "input_schema": TOOLS[0]["function"]["parameters"]}]
    body = {"model": "simulated", "max_tokens": 200, "messages": [ASKED], "tools": tools}
    reply = (await post(engine, "/v1/messages", body)).json()
    (block,) = reply["content"]
    assert (reply["stop_reason"], block["type"], block["name"]) == ("tool_use", "tool_use", "look")
    assert json.dumps(block["input"]) == expected_text(engine.settings, body, "messages")
    outcome = {"type": "tool_result", "tool_use_id": block["id"], "content": "145"}
    history = [
        ASKED,
        {"role": "assistant", "content": reply["content"]},
        {"role": "user", "content": [outcome]},
    ]
    last = (await post(engine, "/v1/messages", {**body, "messages": history})).json()
    assert (last["stop_reason"], last["content"][0]["type"]) == ("end_turn", "text")
