"""What one engine answers and the router passes on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

MESSAGES = {"model": "simulated", "messages": [{"role": "user", "content": "hi"}]}


async def test_tokens_are_prefills(start: Any) -> None:
    rig = await start()
    reply = await rig.client.post("/tokenize", json={"prompt": "hi"})
    assert reply.json()["tokens"] == [104, 105]
    reply = await rig.client.post("/detokenize", json={"tokens": [104, 105]})
    assert reply.json() == {"prompt": "hi"}
    counted = await rig.client.post("/v1/messages/count_tokens", json=MESSAGES)
    asked = await rig.client.post("/v1/messages", json={**MESSAGES, "max_tokens": 1})
    usage = asked.json()["usage"]
    assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


async def test_one_model_is_found_in_the_list(start: Any) -> None:
    rig = await start()
    (card,) = (await rig.client.get("/v1/models")).json()["data"]
    assert (await rig.client.get(f"/v1/models/{card['id']}")).json() == card
    missing = await rig.client.get("/v1/models/an/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "The model `an/other` does not exist."


async def test_engines_refusal_is_passed_on_untouched(start: Any) -> None:
    rig = await start()
    reply = await rig.client.post("/tokenize", json={"model": "simulated"})
    own = await _direct(rig, "/tokenize", {"model": "simulated"})
    assert (reply.status_code, reply.content) == (400, own.content)
    assert reply.headers["content-type"] == own.headers["content-type"]


async def test_what_engines_do_not_have_is_their_404(start: Any) -> None:
    rig = await start()
    reply = await rig.client.post("/v1/embeddings", json={"input": "hi"})
    own = await _direct(rig, "/v1/embeddings", {"input": "hi"})
    assert (reply.status_code, reply.content) == (404, own.content)
    assert reply.headers["content-type"] == own.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens", "/v1/embeddings"])
async def test_bodies_are_bounded(start: Any, path: str) -> None:
    rig = await start(router={"max_body": 100})
    reply = await rig.client.post(path, json={"prompt": "x" * 200})
    assert reply.status_code == 413
    assert ("type" in reply.json()) == path.startswith("/v1/messages")


async def test_clients_credentials_stay_here(start: Any) -> None:
    rig = await start(
        prefill={"api_key": "engines"}, decode={"api_key": "engines"}, router={"engine_key": "engines"}
    )
    headers = {"authorization": "Bearer client", "x-api-key": "client", "cookie": "a=client"}
    assert (await rig.client.get("/v1/models", headers=headers)).status_code == 200
    counted = await rig.client.post("/v1/messages/count_tokens", json=MESSAGES, headers=headers)
    assert counted.status_code == 200
    answered = await rig.client.post("/v1/messages", json={**MESSAGES, "max_tokens": 2}, headers=headers)
    assert answered.status_code == 200
    for engine in (*rig.prefill, *rig.decode):
        for received in engine.requests:
            assert "client" not in str(received)


async def test_engine_that_refuses_our_key_is_no_clients_401(start: Any) -> None:
    rig = await start(prefill={"api_key": "engines"})
    reply = await rig.client.post("/v1/messages/count_tokens", json=MESSAGES)
    assert (reply.status_code, reply.json()["error"]["type"]) == (502, "api_error")


async def test_decode_is_asked_when_no_prefill_engine_answers(start: Any) -> None:
    rig = await start(prefills=2)
    for engine in rig.prefill:  # so fast that the router knows of neither
        await rig.kill(engine)
    assert (await rig.client.post("/tokenize", json={"prompt": "hi"})).status_code == 200


async def test_another_engine_is_asked_when_one_is_down(start: Any) -> None:
    rig = await start(prefills=2)
    await rig.kill(rig.prefill[0])
    for _ in range(4):  # whether the router knows already or not
        assert (await rig.client.post("/tokenize", json={"prompt": "hi"})).status_code == 200
    await rig.kill(rig.prefill[1])
    for _ in range(4):
        assert (await rig.client.post("/tokenize", json={"prompt": "hi"})).status_code == 200


async def _direct(rig: Any, path: str, body: dict[str, Any]) -> httpx.Response:
    worker = rig.state.workers.prefill[0]
    async with httpx.AsyncClient() as http:
        return await http.post(worker.url + path, json=body)
