"""The simulated engine's newer surfaces, worded as vLLM words them, on the same books."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from antiphon_server.protocol import PROMPT_HEADER, PROTOCOL_HEADER, read_prompt, seal_of
from antiphon_server.simulator import (
    Settings,
    SimulatedCluster,
    SimulatedEngine,
    app,
    expected_text,
)

COLD = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
APPEND = {"do_remote_decode": False, "do_remote_prefill": False}
TOLD = {PROTOCOL_HEADER: "1"}
CONTENT = "How far is it from Ulm to Bonn? " * 5
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": CONTENT}]},
    "/v1/completions": {"prompt": CONTENT, "max_tokens": 30},
    "/v1/responses": {"input": CONTENT},
    "/v1/messages": {
        "model": "simulated",
        "messages": [{"role": "user", "content": CONTENT}],
        "max_tokens": 30,
    },
}
NAMES = {"/v1/responses": "responses", "/v1/messages": "messages"}


async def post(engine: SimulatedEngine, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", verify=False) as http:
        return await http.post(path, json=body, headers=headers)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(part.rpartition("data: ")[2]) for part in text.split("\n\n")[:-1]]


def pair(**decode: Any) -> tuple[SimulatedEngine, SimulatedEngine]:
    cluster = SimulatedCluster()
    prefill = SimulatedEngine(Settings(role="prefill", threshold=0, prefix_caching=False), cluster=cluster)
    return prefill, SimulatedEngine(Settings(**decode), cluster=cluster)


def shown(path: str, reply: dict[str, Any]) -> str:
    if path == "/v1/messages":
        return "".join(block["text"] for block in reply["content"])
    return "".join(part["text"] for item in reply["output"] for part in item["content"])


@pytest.mark.parametrize("path", NAMES)
async def test_both_legs_hand_kv_over(path: str) -> None:
    prefill, decode = pair()
    body = BODIES[path]
    limit = {"max_tokens": 1} if path == "/v1/messages" else {"max_output_tokens": 1}
    filled = (await post(prefill, path, {**body, **limit, "kv_transfer_params": COLD})).json()
    reply = (await post(decode, path, {**body, "kv_transfer_params": filled["kv_transfer_params"]})).json()
    assert decode.counters.computed == 1
    assert shown(path, reply) == expected_text(decode.settings, body, NAMES[path])
    assert seal_of(reply["kv_transfer_params"]) is not None
    again = {**reply["kv_transfer_params"], "do_remote_decode": True, "do_remote_prefill": False}
    await post(prefill, path, {**body, **limit, "kv_transfer_params": again})
    assert prefill.counters.pulled > 0


@pytest.mark.parametrize("path", NAMES)
async def test_answer_depends_on_the_kv_that_was_used(path: str) -> None:
    prefill, decode = pair(check=False)
    other = json.loads(json.dumps(BODIES[path]).replace("Ulm", "Elm"))
    limit = {"max_tokens": 1} if path == "/v1/messages" else {"max_output_tokens": 1}
    filled = (await post(prefill, path, {**other, **limit, "kv_transfer_params": COLD})).json()
    reply = await post(decode, path, {**BODIES[path], "kv_transfer_params": filled["kv_transfer_params"]})
    assert shown(path, reply.json()) != expected_text(decode.settings, BODIES[path], NAMES[path])


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_is_told_to_those_who_speak_the_protocol(path: str, stream: bool) -> None:
    decode = SimulatedEngine()
    body = {**BODIES[path], "stream": stream, "kv_transfer_params": APPEND}
    await post(decode, path, body)
    reply = await post(decode, path, body, **TOLD)
    if stream and path == "/v1/responses":
        # Its stream begins before there is a token, so there is nothing to tell yet.
        assert PROMPT_HEADER not in reply.headers
    else:
        prompt = read_prompt(reply.headers[PROMPT_HEADER])
        assert prompt is not None
        assert 0 < prompt.tokens - prompt.cached <= decode.settings.block_size
    assert PROMPT_HEADER not in (await post(decode, path, body)).headers


@pytest.mark.parametrize("told", [False, True])
async def test_messages_stream_tells_the_handle_only_when_asked(told: bool) -> None:
    body = {**BODIES["/v1/messages"], "stream": True, "kv_transfer_params": APPEND}
    reply = await post(SimulatedEngine(), "/v1/messages", body, **(TOLD if told else {}))
    kinds = [event.get("type") or event.get("object") for event in events(reply.text)]
    assert kinds[0] == "message_start"
    end = ["message_delta", *(["antiphon.handle"] if told else []), "message_stop"]
    assert kinds[-len(end) :] == end


@pytest.mark.parametrize("antiphon", [False, True])
async def test_responses_stream_carries_the_handle_by_itself(antiphon: bool) -> None:
    body = {**BODIES["/v1/responses"], "stream": True, "kv_transfer_params": APPEND}
    engine = SimulatedEngine(Settings(antiphon=antiphon))
    told = events((await post(engine, "/v1/responses", body)).text)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert told[-1]["type"] == "response.completed"
    assert told[-1]["response"]["kv_transfer_params"]["remote_request_id"]
    assert told[0]["response"]["kv_transfer_params"] is None


async def test_ids_are_shown_in_the_messages_that_led_here() -> None:
    asked = {**BODIES["/v1/responses"], "enable_response_messages": True}
    reply = (await post(SimulatedEngine(), "/v1/responses", asked)).json()
    (message,) = reply["input_messages"]
    assert len(message["tokens"]) == reply["usage"]["input_tokens"]


async def test_stored_response_is_continued_in_this_life_only() -> None:
    engine = SimulatedEngine(Settings(store=True))
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app(engine)), base_url="http://e", verify=False)
    async with http:
        first = (await http.post("/v1/responses", json={**BODIES["/v1/responses"], "request_id": "r"})).json()
        assert first["id"] == "r"
        more = {"input": "And back?", "previous_response_id": "r"}
        second = (await http.post("/v1/responses", json=more)).json()
        said = {"role": "assistant", "content": shown("/v1/responses", first)}
        told = [{"role": "user", "content": CONTENT}, said, {"role": "user", "content": "And back?"}]
        assert shown("/v1/responses", second) == expected_text(engine.settings, {"input": told}, "responses")
        assert (await http.get("/v1/responses/r")).json() == first
        engine.restart()
        assert (await http.post("/v1/responses", json=more)).status_code == 404


async def test_unknown_response_is_refused() -> None:
    body = {**BODIES["/v1/responses"], "previous_response_id": "resp_x"}
    reply = await post(SimulatedEngine(Settings(store=True)), "/v1/responses", body)
    error = {"message": "Response with id 'resp_x' not found.", "type": "invalid_request_error"}
    assert (reply.status_code, reply.json()) == (
        404,
        {"error": {**error, "param": "response_id", "code": 404}},
    )


async def test_messages_are_refused_in_anthropics_form() -> None:
    reply = await post(SimulatedEngine(), "/v1/messages", {**BODIES["/v1/messages"], "model": "nope"})
    assert reply.status_code == 404
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "NotFoundError"
