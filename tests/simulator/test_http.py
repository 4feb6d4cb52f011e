"""The simulated engine's HTTP, in-process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest

from antiphon_server.protocol import HANDLE_OBJECT, INFO_PATH, LEASES_PATH, PROTOCOL_HEADER, seal_of
from antiphon_server.simulator import (
    ConnectionDroppedError,
    Fault,
    Settings,
    SimulatedCluster,
    SimulatedEngine,
    Tokenizer,
    app,
    expected_ids,
)

COLD = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
APPEND = {"do_remote_decode": False, "do_remote_prefill": False}
CHAT = "/v1/chat/completions"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "How far is it from Ulm to Bonn? " * 5}]
TOOL = {
    "type": "function",
    "function": {
        "name": "distance",
        "parameters": {
            "type": "object",
            "properties": {"from": {"type": "string"}, "exact": {"type": "boolean"}},
        },
    },
}


def client(engine: SimulatedEngine, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app(engine)), verify=False, base_url="http://engine", headers=headers
    )


def engine(**settings: Any) -> SimulatedEngine:
    return SimulatedEngine(Settings(**settings))


async def post(engine: SimulatedEngine, path: str, body: dict[str, Any], **headers: str) -> Any:
    async with client(engine, **headers) as http:
        reply = await http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def events(
    engine: SimulatedEngine, body: dict[str, Any], path: str = CHAT, **headers: str
) -> list[dict[str, Any]]:
    async with client(engine, **headers) as http:
        reply = await http.post(path, json={**body, "stream": True})
    lines = [line for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [orjson.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_a_chat_answers_in_vllms_form_what_full_recomputation_gives() -> None:
    one = engine(answer_tokens=20)
    body = {"model": "simulated", "messages": MESSAGES, "return_token_ids": True, "logprobs": True}
    reply = await post(one, CHAT, body)
    (choice,) = reply["choices"]
    assert choice["token_ids"] == expected_ids(one.settings, body)
    assert choice["message"]["content"] == Tokenizer().decode(choice["token_ids"][:-1])
    assert choice["finish_reason"] == "stop"
    assert len(choice["logprobs"]["content"]) == 21
    assert reply["usage"]["prompt_tokens"] == len(reply["prompt_token_ids"])
    assert reply["kv_transfer_params"] is None


async def test_a_stream_says_the_same_as_the_whole_reply() -> None:
    one = engine(reasoning_tokens=9)
    body = {"messages": MESSAGES, "return_token_ids": True, "stream_options": {"include_usage": True}}
    whole = await post(one, CHAT, body)
    chunks = await events(engine(reasoning_tokens=9), body)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert chunks[-1]["usage"] == whole["usage"]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content", "") for delta in deltas) == message["content"]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == message["reasoning"]
    streamed = [token for choice in choices for token in choice.get("token_ids") or ()]
    assert streamed == whole["choices"][0]["token_ids"]
    assert choices[-1]["finish_reason"] == "stop"


async def test_a_stream_returns_its_handle_only_to_those_who_speak_the_protocol() -> None:
    body = {"messages": MESSAGES, "kv_transfer_params": APPEND}
    last = (await events(engine(), body, **{PROTOCOL_HEADER: "1"}))[-1]
    assert last["object"] == HANDLE_OBJECT
    assert seal_of(last["kv_transfer_params"]) is not None
    assert (await events(engine(), body))[-1]["object"] == "chat.completion.chunk"
    plain = await events(engine(antiphon=False), body, **{PROTOCOL_HEADER: "1"})
    assert plain[-1]["object"] == "chat.completion.chunk"


async def test_a_turn_over_http_carries_ids_handle_and_cached_tokens() -> None:
    cluster = SimulatedCluster()
    prefill = SimulatedEngine(Settings(role="prefill", prefix_caching=False), cluster=cluster)
    decode = SimulatedEngine(Settings(role="decode"), cluster=cluster)
    handle, messages = COLD, MESSAGES
    for turn in range(3):
        leg = await post(
            prefill,
            CHAT,
            {"messages": messages, "max_tokens": 1, "return_token_ids": True, "kv_transfer_params": handle},
        )
        told = {**leg["kv_transfer_params"], "prompt_token_ids": leg["prompt_token_ids"]}
        # The messages lie: decode must take the ids that prefill used.
        body = {"messages": MESSAGES[:1], "return_token_ids": True, "kv_transfer_params": told}
        reply = await post(decode, CHAT, body)
        (choice,) = reply["choices"]
        assert choice["token_ids"] == expected_ids(decode.settings, {"messages": messages})
        seal = seal_of(leg["kv_transfer_params"])
        assert seal is not None
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == seal.matched
        assert bool(seal.pulled) is (turn > 0)
        handle = {**reply["kv_transfer_params"], "do_remote_decode": True, "do_remote_prefill": False}
        answer = {"role": "assistant", "content": choice["message"]["content"]}
        messages = [*messages, answer, {"role": "user", "content": "And back again? " * 3}]
    released = await post(decode, LEASES_PATH, {"release": [handle["remote_request_id"]]})
    assert released["pinned"] == 0
    assert (prefill.pinned_blocks, decode.pinned_blocks) == (0, 0)


async def test_forwarded_ids_must_be_ids() -> None:
    async with client(engine()) as http:
        body = {"messages": MESSAGES, "kv_transfer_params": {**APPEND, "prompt_token_ids": ["a"]}}
        assert (await http.post(CHAT, json=body)).status_code == 400


@pytest.mark.parametrize(
    ("choice", "finish"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "distance"}}, "stop")],
)
async def test_a_forced_tool_call_follows_the_schema_and_streams_alike(choice: Any, finish: str) -> None:
    body = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": choice}
    reply = (await post(engine(), CHAT, body))["choices"][0]
    (call,) = reply["message"]["tool_calls"]
    arguments = orjson.loads(call["function"]["arguments"])
    assert (call["function"]["name"], list(arguments), arguments["exact"]) == (
        "distance",
        ["from", "exact"],
        True,
    )
    assert reply["finish_reason"] == finish
    chunks = [chunk["choices"][0] for chunk in await events(engine(), body)]
    parts = [part for chunk in chunks for part in chunk["delta"].get("tool_calls", ())]
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
    assert parts[0]["function"]["name"] == "distance"
    assert chunks[-1]["finish_reason"] == finish


async def test_a_tool_call_sent_back_verbatim_extends_what_was_sampled_and_a_rewritten_one_does_not() -> None:
    one = engine()
    first = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "return_token_ids": True}
    reply = await post(one, CHAT, first)
    held = [*reply["prompt_token_ids"], *reply["choices"][0]["token_ids"]]
    call = reply["choices"][0]["message"]["tool_calls"][0]
    rewritten = orjson.dumps(orjson.loads(call["function"]["arguments"])).decode()
    for arguments, extends in ((call["function"]["arguments"], True), (rewritten, False)):
        sent = {**call, "function": {**call["function"], "arguments": arguments}}
        messages = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [sent]}]
        ids = (await post(one, "/tokenize", {"messages": messages, "tools": [TOOL]}))["tokens"]
        assert (ids[: len(held)] == held) is extends


async def test_drift_makes_the_answers_text_tokenise_to_other_ids() -> None:
    for drift in (True, False):
        one = engine(drift=drift)
        reply = await post(
            one, "/v1/completions", {"prompt": "once", "max_tokens": 5, "return_token_ids": True}
        )
        (choice,) = reply["choices"]
        again = (await post(one, "/tokenize", {"prompt": choice["text"]}))["tokens"]
        assert (again != choice["token_ids"]) is drift
        assert Tokenizer(drift=drift).decode(again) == choice["text"]
        assert choice["prompt_token_ids"] == Tokenizer(drift=drift).encode("once")
        assert choice["finish_reason"] == "length"


async def test_completions_stream_and_give_logprobs_and_more_than_one_choice() -> None:
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "logprobs": 1, "n": 2}
    whole = await post(engine(), "/v1/completions", body)
    texts = [choice["text"] for choice in whole["choices"]]
    assert texts[0] != texts[1]
    assert whole["choices"][0]["logprobs"]["text_offset"] == [0, 1, 2, 3]
    chunks = [chunk["choices"][0] for chunk in await events(engine(), body, "/v1/completions")]
    streamed = ["".join(c["text"] for c in chunks if c["index"] == index) for index in (0, 1)]
    assert streamed == texts


async def test_ignore_eos_fills_max_tokens_and_max_completion_tokens_wins() -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 50, "ignore_eos": True}
    reply = await post(engine(), CHAT, body)
    assert reply["usage"]["completion_tokens"] == 50
    assert reply["choices"][0]["finish_reason"] == "length"


async def test_a_request_that_cannot_be_served_is_told_why_and_frees_prefill() -> None:
    cluster = SimulatedCluster()
    prefill = SimulatedEngine(Settings(role="prefill"), cluster=cluster)
    decode = SimulatedEngine(Settings(max_model_len=64), cluster=cluster)
    leg = await post(prefill, CHAT, {"messages": MESSAGES, "max_tokens": 1, "kv_transfer_params": COLD})
    assert prefill.pinned_blocks > 0
    async with client(decode) as http:
        body = {"messages": MESSAGES, "kv_transfer_params": leg["kv_transfer_params"]}
        long = await http.post(CHAT, json=body)
        assert (long.status_code, long.json()["error"]["type"]) == (400, "BadRequestError")
        assert (await http.post(CHAT, json={"messages": MESSAGES, "model": "x"})).status_code == 404
        assert (await http.post(CHAT, json={"messages": 3})).status_code == 400
        assert (await http.post(CHAT, content=b"{")).status_code == 400
    assert prefill.pinned_blocks == 0


async def test_the_key_guards_vllms_paths_and_ours() -> None:
    one = engine(api_key="secret")
    async with client(one) as http:
        for path in ("/v1/models", INFO_PATH):
            assert (await http.get(path)).status_code == 401
            allowed = await http.get(path, headers={"authorization": "Bearer secret"})
            assert allowed.status_code == 200
        assert (await http.get("/health")).status_code == 200


async def test_info_tells_the_engine_and_a_stock_engine_has_none() -> None:
    one = engine(role="prefill")
    async with client(one) as http:
        info = (await http.get(INFO_PATH)).json()
    assert (info["engine_id"], info["epoch"], info["role"]) == (one.engine_id, one.epoch, "prefill")
    async with client(engine(antiphon=False)) as http:
        assert (await http.get(INFO_PATH)).status_code == 404
        assert (await http.post(LEASES_PATH, json={})).status_code == 404


async def test_requests_are_kept_as_they_came() -> None:
    one = engine()
    told = {**APPEND, "prompt_token_ids": [1, 2, 3]}
    await post(one, CHAT, {"messages": [], "kv_transfer_params": told}, **{"X-Turn-ID": "t1"})
    (received,) = one.requests
    assert received.headers["x-turn-id"] == "t1"
    assert received.body["kv_transfer_params"] == told


async def test_metrics_count_prompt_tokens_by_their_source() -> None:
    one = engine(prefix_caching=True)
    for _ in range(2):
        await post(one, "/v1/completions", {"prompt": [7] * 40, "kv_transfer_params": APPEND})
    async with client(one) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    labels = 'engine="0",model_name="simulated"'
    assert f'vllm:prompt_tokens_by_source_total{{{labels},source="local_cache_hit"}} 32.0' in lines
    assert f'vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} 48.0' in lines
    assert f"vllm:kv_cache_usage_perc{{{labels}}} {one.used_blocks / 4096}" in lines


@pytest.fixture
async def faulty() -> AsyncIterator[tuple[SimulatedEngine, httpx.AsyncClient]]:
    one = engine()
    async with client(one) as http:
        yield one, http


async def test_faults_are_injected_over_http_and_used_up(
    faulty: tuple[SimulatedEngine, httpx.AsyncClient],
) -> None:
    one, http = faulty
    body = {"prompt": "a", "max_tokens": 2}
    await http.post("/simulator/faults", json={"faults": [{"kind": "status", "code": 502, "times": 2}]})
    codes = [(await http.post("/v1/completions", json=body)).status_code for _ in range(3)]
    assert codes == [502, 502, 200]
    one.faults.add(Fault(kind="drop", path=CHAT))
    assert (await http.post("/v1/completions", json=body)).status_code == 200
    with pytest.raises(ConnectionDroppedError):
        await http.post(CHAT, json=body)
    before = one.engine_id
    await http.post("/simulator/faults", json={"faults": [{"kind": "drop"}], "clear": True, "restart": True})
    assert (len(one.faults), one.engine_id == before) == (1, False)
    assert (await http.get("/simulator/books")).json()["engine_id"] == one.engine_id


async def test_a_dropped_reply_may_have_been_worked_for(
    faulty: tuple[SimulatedEngine, httpx.AsyncClient],
) -> None:
    one, http = faulty
    one.faults.add(Fault(kind="drop", worked=True))
    with pytest.raises(ConnectionDroppedError):
        await http.post(CHAT, json={"messages": MESSAGES, "kv_transfer_params": APPEND})
    assert len(one.pinned) == 1


async def test_prefix_cache_is_emptied_in_dev_mode_only() -> None:
    own = engine(dev=True)
    body = {"messages": MESSAGES, "max_tokens": 4, "kv_transfer_params": COLD}
    await post(own, CHAT, body)
    await post(own, CHAT, body)
    assert own.counters.local > 0
    before = own.counters.local
    assert await post(own, "/reset_prefix_cache", {}) == {"success": False}  # blocks are kept for a reader
    await post(own, LEASES_PATH, {"release": own.pinned})
    assert await post(own, "/reset_prefix_cache", {}) == {"success": True}
    await post(own, CHAT, body)
    assert own.counters.local == before
    async with client(engine()) as http:
        assert (await http.post("/reset_prefix_cache")).status_code == 404
