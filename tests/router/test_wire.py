"""What engines are sent and clients see: identity, bodies, headers, bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon_server.simulator.generation import Generation

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("surface", ["chat", "completions"])
async def test_nothing_of_ours_leaks(start: Any, opening: list[Message], surface: str, stream: bool) -> None:
    rig = await start()
    body: dict[str, Any] = {"model": "simulated", "conversation_id": "c", "stream": stream, "max_tokens": 20}
    body |= {"messages": opening} if surface == "chat" else {"prompt": "tell me of letters"}
    path = "/v1/chat/completions" if surface == "chat" else "/v1/completions"
    for _ in range(2):
        reply = await rig.client.post(path, json=body)
        assert reply.status_code == 200
        assert b'kv_transfer_params":{' not in reply.content.replace(b" ", b"")
        assert b"remote_" not in reply.content
        assert b"antiphon" not in reply.content
        assert b'token_ids":[' not in reply.content.replace(b" ", b"")
        assert not any("127.0.0.1" in value for value in reply.headers.values())


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_come_when_asked_for(start: Any, opening: list[Message], stream: bool) -> None:
    rig = await start()
    answer = await rig.ask(opening, conversation="c", stream=stream)
    assert answer.ids
    assert b"prompt_token_ids" in answer.raw
    assert b"remote_" not in answer.raw


async def test_stream_is_byte_identical_but_for_the_handle(start: Any, opening: list[Message]) -> None:
    rig = await start()
    sent: list[bytes] = []
    original = Generation._stream

    async def spy(self: Any, send: Any) -> None:
        async def record(message: Any) -> None:
            sent.append(message.get("body", b""))
            await send(message)

        await original(self, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Generation, "_stream", spy)
        answer = await rig.ask(opening, conversation="c", stream=True, logprobs=True)
    events = [event + b"\n\n" for event in b"".join(sent).split(b"\n\n")[:-1]]
    assert any(b"antiphon.handle" in event for event in events)
    assert answer.raw == b"".join(event for event in events if b"antiphon.handle" not in event)


async def test_first_chunk_comes_before_the_stream_ends(start: Any, opening: list[Message]) -> None:
    rig = await start(decode={"decode_rate": 20.0})
    body = {"model": "simulated", "messages": opening, "stream": True, "conversation_id": "c"}
    async with rig.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        first = await anext(reply.aiter_raw())
        assert b'"role"' in first
        assert b"[DONE]" not in first
        assert rig.decode[0].running == 1
        assert reply.headers["x-antiphon-reuse"].startswith("path=cold;")


async def test_prefill_leg_is_one_token_and_decode_gets_its_handle_and_ids(
    start: Any, opening: list[Message]
) -> None:
    rig = await start()
    answer = await rig.ask(
        opening,
        conversation="c",
        stream=True,
        max_tokens=9,
        logprobs=True,
        top_logprobs=2,
        stop=["zz"],
        min_tokens=2,
    )
    assert len(answer.ids) == 9
    (leg,) = rig.legs(rig.prefill[0])
    assert leg["max_tokens"] == leg["max_completion_tokens"] == 1
    assert leg["return_token_ids"] is True
    assert not leg.keys() & {
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "stop",
        "min_tokens",
        "n",
    }
    (leg,) = rig.legs(rig.decode[0])
    handle = leg["kv_transfer_params"]
    assert len(handle.pop("prompt_token_ids")) == answer.usage["prompt_tokens"]
    assert handle["remote_engine_id"] == rig.prefill[0].engine_id
    assert handle["do_remote_prefill"] is True
    assert handle["antiphon"]["tail"]
    assert "conversation_id" not in leg


async def test_clients_cannot_name_kv_or_request_ids(start: Any, opening: list[Message]) -> None:
    rig = await start()
    foreign = {
        "do_remote_prefill": True,
        "remote_host": "10.0.0.1",
        "remote_port": 1,
        "remote_block_ids": [[1]],
    }
    await rig.ask(opening, kv_transfer_params=foreign, request_id="mine", headers={"X-Request-Id": "mine"})
    for engine in (*rig.prefill, *rig.decode):
        for received in engine.requests:
            assert "10.0.0.1" not in json.dumps(received.body)
            assert "mine" not in json.dumps(received.body) + received.headers.get("x-request-id", "")


async def test_legs_have_unique_ids_and_the_protocol_header(start: Any, opening: list[Message]) -> None:
    rig = await start()
    for _ in range(2):
        await rig.ask(opening, conversation="c", headers={"traceparent": "00-trace", "X-Secret": "s"})
    legs = [r for engine in (*rig.prefill, *rig.decode) for r in engine.requests if r.path.startswith("/v1/")]
    ids = [leg.headers["x-request-id"] for leg in legs]
    assert len(ids) == len(set(ids)) == 4
    assert all(leg.headers["x-antiphon-protocol"] == "1" for leg in legs)
    assert all(leg.headers["traceparent"] == "00-trace" and "x-secret" not in leg.headers for leg in legs)


@pytest.mark.parametrize(
    "stamp",
    [
        {"body": {"conversation_id": "s"}},
        {"body": {"session_id": "s"}},
        {"body": {"prompt_cache_key": "s"}},
        {"headers": {"X-Conversation-ID": "s"}},
        {"headers": {"X-Session-ID": "s"}},
        {"headers": {"X-Dynamo-Session-ID": "s"}},
        {"headers": {"x-claude-code-session-id": "s"}},
        {"headers": {"x-session-affinity": "s"}},
        {"headers": {"session-id": "s"}},
    ],
)
async def test_every_stamp_names_the_same_conversation(
    start: Any, opening: list[Message], stamp: Any
) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="s")
    history = [*opening, first.message, FOLLOW]
    second = await rig.ask(history, headers=stamp.get("headers"), **stamp.get("body", {}))
    assert second.path == "reuse"


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"n": 2}, "multiple"),
        ({"use_beam_search": True}, "beam"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
async def test_what_no_hand_over_can_carry_goes_to_decode_alone(
    start: Any, opening: list[Message], extra: dict[str, Any], reason: str
) -> None:
    rig = await start()
    answer = await rig.ask(opening, conversation="c", **extra)
    assert (answer.path, answer.reason) == ("cold", reason)
    assert not rig.legs(rig.prefill[0])
    assert "kv_transfer_params" not in rig.legs(rig.decode[0])[0]
    assert rig.decode[0].pinned_blocks == 0


async def test_media_goes_to_decode_alone(start: Any) -> None:
    rig = await start()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    parts = [{"type": "text", "text": 'look at the "image_url" here'}]
    text_only = await rig.ask([{"role": "user", "content": parts}], conversation="c")
    assert text_only.reason == "first"
    media = await rig.ask([{"role": "user", "content": [*parts, image]}], conversation="c", check=False)
    assert media.reason == "media"


async def test_usage_and_logprobs_pass_unchanged(start: Any, opening: list[Message]) -> None:
    rig = await start()
    whole = json.loads((await rig.ask(opening, conversation="c", logprobs=True, top_logprobs=1)).raw)
    assert whole["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    assert (
        whole["usage"]["total_tokens"]
        == whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"]
    )
    assert whole["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_conversation_state_is_told(start: Any, opening: list[Message]) -> None:
    rig = await start()
    answer = await rig.ask(opening, conversation="a/b c")
    rig.clock.time += 10.0
    state = (await rig.client.get("/v1/conversations/a%2Fb%20c")).json()
    assert state["id"] == "a/b c"
    held = answer.usage["prompt_tokens"] + len(answer.ids) - 1
    assert state["kept"] == [{"model": "simulated", "tokens": held, "idle": 10.0, "lease": 50.0}]
    assert (await rig.client.get("/v1/conversations/other")).status_code == 404


async def test_models_tokenize_health_ready_metrics(start: Any, opening: list[Message]) -> None:
    rig = await start()
    assert (await rig.client.get("/v1/models")).json()["data"][0]["id"] == "simulated"
    tokens = (await rig.client.post("/tokenize", json={"model": "simulated", "prompt": "abc"})).json()
    assert tokens["tokens"] == [97, 98, 99]
    assert (await rig.client.get("/health")).status_code == 200
    ready = await rig.client.get("/ready")
    assert (ready.status_code, ready.json()["decode"]) == (200, {"healthy": 1, "reuse": 1, "named": 1})
    await rig.ask(opening, conversation="c")
    metrics = (await rig.client.get("/metrics")).text
    assert 'antiphon_turns_total{path="cold",reason="first"} 1.0' in metrics
    assert "antiphon_frontiers 1.0" in metrics
    unknown = await rig.client.get("/v1/nothing")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, 404)
    assert (await rig.client.get("/v1/chat/completions")).status_code == 405


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stock", ["prefill", "decode", "both"])
async def test_stock_engines_are_served_as_plain_pd(
    start: Any, opening: list[Message], stock: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    roles = ("prefill", "decode") if stock == "both" else (stock,)
    rig = await start(**{role: {"antiphon": False} for role in roles})
    history = opening
    for _ in range(3):
        answer = await rig.ask(history, conversation="c", stream=stream)
        assert (answer.path, answer.reason) == ("cold", "stock")
        history = [*history, answer.message, FOLLOW]
    assert await rig.state.store.held() == []
    for worker in rig.state.workers:
        await rig.state.workers.probe(worker)
    assert [record.message for record in caplog.records].count("engine.stock") == len(roles)


async def test_engine_that_cannot_reuse_gets_no_handle(start: Any, opening: list[Message]) -> None:
    rig = await start(prefill={"reuse": False})
    first = await rig.ask(opening, conversation="c")
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert (second.path, second.reason) == ("cold", "unsupported")
    assert rig.prefill[0].counters.pulled == 0


async def test_reuse_can_be_turned_off(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start(router={"paths": ["cold"]})
    for _ in range(2):
        assert (await rig.ask(opening, conversation="c")).reason == "off"
    await settled(lambda: rig.decode[0].pinned_blocks == 0)


async def test_conversation_stays_with_its_engines(start: Any, opening: list[Message]) -> None:
    rig = await start(prefills=2, decodes=2)
    for name in "abcd":
        before = [len(rig.legs(engine)) for engine in (*rig.prefill, *rig.decode)]
        history = opening
        for _ in range(3):
            answer = await rig.ask(history, conversation=name)
            history = [*history, answer.message, FOLLOW]
        after = [len(rig.legs(engine)) for engine in (*rig.prefill, *rig.decode)]
        served = [now - then for now, then in zip(after, before, strict=True)]
        assert (sorted(served[:2]), sorted(served[2:])) == ([0, 3], [0, 3])
