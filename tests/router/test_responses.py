"""``/v1/responses`` through the router, over engines that keep their responses to themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon_server.router.errors import NotFoundError
from antiphon_server.router.gate.identity import Identity
from antiphon_server.router.legs import read_ask
from antiphon_server.router.surfaces.responses import Responses
from antiphon_server.simulator import expected_text
from rig.answers import parse_reuse

PATH = "/v1/responses"
SYSTEM = "You are an agent that answers in short letters. " * 3
TOOLS = [
    {
        "type": "function",
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}, "deep": {"type": "boolean"}},
        },
    }
]
STORING = {"decode": {"store": True}}


def body(*items: Any, **more: Any) -> dict[str, Any]:
    opening = {"role": "user", "content": "Name the first letters, please, and take your time."}
    return {"model": "simulated", "instructions": SYSTEM, "input": [opening, *items], **more}


def said(items: list[dict[str, Any]]) -> str:
    """All that an output shows."""
    parts = [part for item in items for part in item.get("content") or ()]
    return "".join(part["text"] for part in parts) + "".join(i.get("arguments", "") for i in items)


def events(text: str) -> list[dict[str, Any]]:
    found = []
    for part in text.split("\n\n")[:-1]:
        name, _, data = part.partition("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def ask(rig: Any, request: dict[str, Any], conversation: str | None = None, **headers: str) -> Any:
    """One turn; its answer must be that of full recomputation. Returns the response and its head."""
    sent = request if conversation is None else {**request, "conversation_id": conversation}
    reply = await rig.client.post(PATH, json=sent, headers=headers)
    assert reply.status_code == 200, reply.text
    response = events(reply.text)[-1]["response"] if request.get("stream") else reply.json()
    assert "kv_transfer_params" not in reply.text
    if "previous_response_id" not in request:
        assert said(response["output"]) == expected_text(rig.decode[0].settings, request, "responses")
    return response, reply.headers


def reuse(headers: Any) -> tuple[str, str]:
    parts = parse_reuse(headers["x-antiphon-reuse"])
    return parts["path"], parts["reason"]


@pytest.mark.parametrize("stream", [False, True])
async def test_conversation_reuses_turn_by_turn(start: Any, stream: bool) -> None:
    rig = await start(router={"paths": ["cold", "reuse"]})
    response, headers = await ask(rig, body(stream=stream), "c")
    assert reuse(headers) == ("cold", "first")
    history = [*response["output"], {"role": "user", "content": "And the next ones?"}]
    response, headers = await ask(rig, body(*history, stream=stream), "c")
    assert reuse(headers) == ("reuse", "full")
    assert response["usage"]["input_tokens_details"]["cached_tokens"] > 200
    # Prefill's ids spare decode its tokenizer.
    handles = [leg["kv_transfer_params"] for leg in rig.legs(rig.decode[0])]
    assert [len(handle["prompt_token_ids"]) > 200 for handle in handles] == [True, True]


@pytest.mark.parametrize("stream", [False, True])
async def test_changed_history_answers_as_full_recomputation(start: Any, stream: bool) -> None:
    rig = await start()
    response, _ = await ask(rig, body(stream=stream), "c")
    other = {"role": "assistant", "content": "something that was never said"}
    more = {"role": "user", "content": "And the next ones?"}
    await ask(rig, body(other, more, stream=stream), "c")
    await ask(rig, {**body(*response["output"], more, stream=stream), "instructions": "Be another."}, "c")
    await ask(rig, body(*response["output"], more, stream=stream))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look"}])
async def test_tool_round_with_reasoning_reuses(start: Any, choice: Any, stream: bool) -> None:
    rig = await start(decode={"reasoning_tokens": 12}, router={"paths": ["cold", "reuse"]})
    request = body(tools=TOOLS, tool_choice=choice, stream=stream)
    response, _ = await ask(rig, request, "c")
    thought, call = response["output"]
    assert (thought["type"], call["type"], call["name"]) == ("reasoning", "function_call", "look")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "nothing to see " * 8}
    _, headers = await ask(rig, body(thought, call, result, tools=TOOLS, stream=stream), "c")
    assert reuse(headers)[0] == "reuse"


async def test_stored_response_is_continued_by_the_engine_that_has_it(start: Any) -> None:
    rig = await start(decodes=3, **STORING)
    first, _ = await ask(rig, body())
    holder = next(engine for engine in rig.decode if rig.legs(engine))
    for _ in range(3):
        more = {"instructions": SYSTEM, "input": "More.", "previous_response_id": first["id"]}
        second, headers = await ask(rig, more)
        assert reuse(headers) == ("append", "stored")
        assert second["previous_response_id"] == first["id"]
    assert len(rig.legs(holder)) == 4
    assert [len(rig.legs(engine)) for engine in rig.prefill] == [1]
    assert rig.legs(holder)[-1]["kv_transfer_params"] == {
        "do_remote_decode": False,
        "do_remote_prefill": False,
    }
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 200


async def test_stored_turns_belong_to_the_conversation_of_the_first(start: Any, settled: Any) -> None:
    rig = await start(**STORING)
    first, _ = await ask(rig, body(), "c")
    second, _ = await ask(rig, {"input": "More.", "previous_response_id": first["id"]})
    unnamed, _ = await ask(rig, body())
    third, _ = await ask(rig, {"input": "More.", "previous_response_id": second["id"]})
    other, _ = await ask(rig, {"input": "More.", "previous_response_id": unnamed["id"]})
    found = {
        one["id"]: rig.state.responses.find(one["id"]).key.conversation for one in (second, third, other)
    }
    assert list(found.values()) == ["c", "c", unnamed["id"]]
    # One lease a conversation: what was superseded is released.
    await settled(lambda: len(rig.decode[0].pinned) == 2)


async def test_response_is_fetched_from_its_engine_without_the_handle(start: Any) -> None:
    rig = await start(decodes=2, **STORING)
    made = [(await ask(rig, body(), f"c{number}"))[0] for number in range(4)]
    for response in made:
        fetched = await rig.client.get(f"{PATH}/{response['id']}")
        assert fetched.status_code == 200
        assert fetched.json() == response
        cancelled = await rig.client.post(f"{PATH}/{response['id']}/cancel")
        assert cancelled.status_code == 400
        assert cancelled.json()["error"]["message"] == "Cannot cancel a synchronous response."


async def test_another_tenants_response_is_unknown(start: Any) -> None:
    rig = await start(**STORING)
    mine, yours = {"authorization": "Bearer mine"}, {"authorization": "Bearer yours"}
    response, _ = await ask(rig, body(), **mine)
    asked = len(rig.legs(rig.decode[0]))
    replies = [
        await rig.client.get(f"{PATH}/{response['id']}", headers=yours),
        await rig.client.post(f"{PATH}/{response['id']}/cancel", headers=yours),
        await rig.client.post(PATH, json=body(previous_response_id=response["id"]), headers=yours),
        await rig.client.get(f"{PATH}/resp_{'0' * 40}", headers=mine),
    ]
    for reply in replies:
        assert reply.status_code == 404
        assert "not found" in reply.json()["error"]["message"]
    assert len(rig.legs(rig.decode[0])) == asked
    assert (await rig.client.get(f"{PATH}/{response['id']}", headers=mine)).status_code == 200


async def test_response_that_the_engine_lost_is_its_to_refuse(start: Any) -> None:
    rig = await start(**STORING)
    response, _ = await ask(rig, body())
    rig.decode[0].restart()
    reply = await rig.client.post(PATH, json=body(previous_response_id=response["id"]))
    assert reply.status_code == 404
    message = f"Response with id '{response['id']}' not found."
    error = {"message": message, "type": "invalid_request_error", "param": "response_id", "code": 404}
    assert reply.json() == {"error": error}


async def test_response_that_another_router_made_is_looked_for_on_all_engines(start: Any) -> None:
    rig = await start(decodes=3, router={"responses": 1}, **STORING)
    made = [(await ask(rig, body()))[0] for _ in range(4)]
    assert len(rig.state.responses) == 1
    for response in made:
        assert (await rig.client.get(f"{PATH}/{response['id']}")).json() == response
    for response in made:
        more = {"instructions": SYSTEM, "input": "More.", "previous_response_id": response["id"]}
        _, headers = await ask(rig, more)
        assert reuse(headers) == ("append", "stored")


async def test_response_that_is_not_stored_is_not_remembered(start: Any) -> None:
    rig = await start(**STORING)
    await ask(rig, body(store=False))
    assert len(rig.state.responses) == 0


async def test_response_of_an_engine_that_is_down_is_not_asked_of_another(start: Any, settled: Any) -> None:
    rig = await start(decodes=2, router={"probe_interval": 0.05}, **STORING)
    response, _ = await ask(rig, body())
    holder = next(engine for engine in rig.decode if rig.legs(engine))
    worker = rig.state.workers.find(rig.state.responses.find(response["id"]).worker)
    await rig.kill(holder)
    await settled(lambda: not worker.healthy)
    reply = await rig.client.post(PATH, json=body(previous_response_id=response["id"]))
    assert reply.status_code == 503


def test_ids_are_bounded_and_the_newest_stay() -> None:
    book = Responses(2)
    names = []
    for _ in range(3):
        asked, identity = book.admit(read_ask("responses", b'{"input": "hi"}'), Identity("t", None))
        book.keep(asked, identity, "d")
        names.append(asked.response_id)
    assert [book.find(name) is not None for name in names] == [False, True, True]


@pytest.mark.parametrize("change", [lambda i: i[:-1] + "g", lambda i: "resp_../" + i[9:], lambda i: i + "0"])
def test_made_up_ids_name_nothing(change: Any) -> None:
    book = Responses(2)
    asked, _ = book.admit(read_ask("responses", b'{"input": "hi"}'), Identity("t", None))
    assert asked.response_id is not None
    book.check("t", asked.response_id)
    for tenant, name in (("u", asked.response_id), ("t", change(asked.response_id))):
        with pytest.raises(NotFoundError):
            book.check(tenant, name)


async def test_broken_stream_ends_with_an_error_event_in_this_surfaces_form(start: Any, fault: Any) -> None:
    rig = await start()
    rig.decode[0].faults.add(fault(kind="cut", chunks=6, path="/v1/responses"))
    reply = await rig.client.post(PATH, json=body(stream=True))
    *_, before, error = events(reply.text)
    assert (error["type"], error["code"], error["param"]) == ("error", "engine_failed", None)
    assert error["sequence_number"] == before["sequence_number"] + 1


async def test_background_and_templates_go_to_decode_alone(start: Any) -> None:
    rig = await start(**STORING)
    _, headers = await ask(rig, body(background=True))
    assert reuse(headers) == ("cold", "background")
    reply = await rig.client.post(PATH, json=body(prompt={"id": "p"}))
    assert reply.status_code == 400
    assert rig.legs(rig.prefill[0]) == []
    assert ["kv_transfer_params" in leg for leg in rig.legs(rig.decode[0])] == [False, False]
