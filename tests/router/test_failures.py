"""Engines fail in every phase; the client gets the right answer or a clear error."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import httpx
import msgspec
import pytest

from antiphon_server.simulator import SimulatedEngine
from antiphon_server.simulator.transfer import TransferError

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}


async def second_turn(rig: Any, opening: list[Message], **body: Any) -> list[Message]:
    first = await rig.ask(opening, conversation="c", **body)
    return [*opening, first.message, FOLLOW]


def reuse_legs(rig: Any, engine: Any) -> list[str]:
    """Leases that were sent to a prefill engine in a handle."""
    sent = (leg["kv_transfer_params"] for leg in rig.legs(engine))
    return [params["remote_request_id"] for params in sent if params.get("remote_block_ids")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prefills", [1, 2])
@pytest.mark.parametrize(
    "trouble",
    [
        {"kind": "status", "code": 500},
        {"kind": "drop"},
        {"kind": "drop", "worked": True},
        {"kind": "cut", "chunks": 0},
    ],
)
async def test_failed_reuse_leg_is_retried_cold_once(
    start: Any, fault: Any, opening: list[Message], trouble: dict[str, Any], prefills: int, stream: bool
) -> None:
    rig = await start(prefills=prefills)
    history = await second_turn(rig, opening)
    for engine in rig.prefill:
        if rig.legs(engine):  # the conversation's own prefill engine
            engine.faults.add(fault(**trouble))
    answer = await rig.ask(history, conversation="c", stream=stream)
    assert (answer.path, answer.reason) == ("cold", "failed")
    sent = [lease for engine in rig.prefill for lease in reuse_legs(rig, engine)]
    assert len(sent) == len(set(sent)) <= 1
    if prefills == 2:
        assert all(rig.legs(engine) for engine in rig.prefill)
    third = await rig.ask([*history, answer.message, FOLLOW], conversation="c", stream=stream)
    assert third.path == "reuse"


async def test_handle_is_burned_when_sent(start: Any, fault: Any, opening: list[Message]) -> None:
    rig = await start()
    history = await second_turn(rig, opening)
    rig.prefill[0].faults.add(fault(kind="status", code=500, times=3))
    failed = await rig.ask(history, conversation="c", check=False)
    assert failed.status == 500
    again = await rig.ask(history, conversation="c")
    assert (again.path, again.reason) == ("cold", "lost")
    assert rig.count("antiphon_handles_total", event="burned") == 1


async def test_rejected_reuse_leg_is_not_retried_and_its_lease_is_released(
    start: Any, settled: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start()
    history = await second_turn(rig, opening)
    rig.prefill[0].faults.add(fault(kind="status", code=400))
    legs = len(rig.legs(rig.prefill[0]))
    refused = await rig.ask(history, conversation="c", check=False)
    assert refused.status == 400
    assert len(rig.legs(rig.prefill[0])) <= legs + 1
    await settled(lambda: rig.decode[0].pinned_blocks == 0)
    assert (await rig.ask(history, conversation="c")).reason == "lost"


async def test_client_error_reaches_the_client_as_it_is(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    wrong = await rig.ask(opening, conversation="c", check=False, model="nobody")
    assert (wrong.status, json.loads(wrong.raw)["error"]["type"]) == (404, "NotFoundError")
    too_long = await rig.ask(opening, conversation="c", check=False, max_tokens=10_000_000)
    assert too_long.status == 400
    await settled(lambda: rig.prefill[0].pinned_blocks == 0)
    await settled(lambda: rig.count("antiphon_leases_total", event="released") == 1)
    assert len(rig.legs(rig.decode[0])) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("policy", ["fail", "recompute"])
async def test_declined_pull_answers_right(
    start: Any, opening: list[Message], policy: str, stream: bool
) -> None:
    rig = await start(prefill={"kv_load_failure_policy": policy}, router={"lease_margin": 0.0})
    history = await second_turn(rig, opening)
    rig.clock.time += 57.0  # prefill wants five seconds of life in a handle
    answer = await rig.ask(history, conversation="c", stream=stream)
    assert (answer.path, answer.reason) == ("cold", "failed")
    assert rig.prefill[0].counters.declined == 1


async def test_dead_prefill_engine_is_replaced(start: Any, opening: list[Message]) -> None:
    rig = await start(prefills=2)
    history = await second_turn(rig, opening)
    dying = next(engine for engine in rig.prefill if rig.legs(engine))
    await rig.kill(dying)
    answer = await rig.ask(history, conversation="c")
    assert answer.path == "cold"


async def test_first_turn_that_finds_all_prefill_dead_is_served_by_decode_alone(
    start: Any, opening: list[Message]
) -> None:
    rig = await start(prefills=2)
    for engine in rig.prefill:
        await rig.kill(engine)
    answer = await rig.ask(opening, conversation="c")
    assert (answer.path, answer.reason) == ("cold", "unhealthy")


async def test_decode_serves_alone_while_all_prefill_is_down(start: Any, opening: list[Message]) -> None:
    rig = await start()
    history = await second_turn(rig, opening)
    await rig.kill(rig.prefill[0])
    first = await rig.ask(history, conversation="c")
    assert (first.path, first.reason) == ("cold", "unhealthy")
    second = await rig.ask([*history, first.message, FOLLOW], conversation="c")
    assert (second.path, second.reason) == ("append", "unhealthy")
    ready = await rig.client.get("/ready")
    assert (ready.status_code, ready.json()["prefill"]["healthy"]) == (200, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "trouble", [{"kind": "status", "code": 503}, {"kind": "drop"}, {"kind": "drop", "worked": True}]
)
async def test_decode_that_fails_before_its_first_byte_gets_a_fresh_prefill_leg(
    start: Any, fault: Any, opening: list[Message], trouble: dict[str, Any], stream: bool
) -> None:
    rig = await start(decodes=2)
    history = await second_turn(rig, opening)
    home = next(engine for engine in rig.decode if rig.legs(engine))
    home.faults.add(fault(**trouble))
    answer = await rig.ask(history, conversation="c", stream=stream)
    assert (answer.path, answer.reason) == ("cold", "failed")
    handed = [
        leg["kv_transfer_params"]["remote_request_id"] for engine in rig.decode for leg in rig.legs(engine)
    ]
    assert len(handed) == len(set(handed))


@pytest.mark.parametrize("stream", [False, True])
async def test_decode_whose_pull_fails_is_tried_again_from_prefill(
    start: Any, monkeypatch: pytest.MonkeyPatch, opening: list[Message], stream: bool
) -> None:
    rig = await start()
    read = SimulatedEngine.read_blocks
    failures: list[SimulatedEngine] = []

    def fail_once(engine: SimulatedEngine, counts: Any) -> Any:
        if failures:
            return read(engine, counts)
        failures.append(engine)
        raise TransferError("injected")

    monkeypatch.setattr(SimulatedEngine, "read_blocks", fail_once)
    answer = await rig.ask(opening, conversation="c", stream=stream)
    assert failures == rig.prefill
    assert answer.reason == "failed"


async def test_dead_decode_engine_is_replaced(start: Any, opening: list[Message]) -> None:
    rig = await start(decodes=2)
    history = await second_turn(rig, opening)
    await rig.kill(next(engine for engine in rig.decode if rig.legs(engine)))
    assert (await rig.ask(history, conversation="c")).path == "cold"
    assert (await rig.ask(history, conversation="c")).path == "reuse"


async def test_stream_that_breaks_off_ends_with_an_error_event(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start()
    history = await second_turn(rig, opening)
    rig.decode[0].faults.add(fault(kind="cut", chunks=5))
    body = {"model": "simulated", "messages": history, "conversation_id": "c", "stream": True}
    reply = await rig.client.post("/v1/chat/completions", json=body)
    events = [event for event in reply.text.split("\n\n") if event]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["type"] == "engine_failed"
    assert len(events) == 6
    assert (await rig.ask(history, conversation="c")).reason == "lost"


async def test_whole_reply_that_breaks_off_is_tried_again(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start()
    rig.decode[0].faults.add(fault(kind="cut", chunks=0))
    assert (await rig.ask(opening, conversation="c")).reason == "failed"


async def test_all_decode_down_is_503_with_retry_after(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    await rig.kill(rig.decode[0])
    await rig.ask(opening, conversation="c", check=False)
    await settled(lambda: not rig.state.workers.decode[0].healthy)
    refused = await rig.ask(opening, conversation="c", check=False)
    assert (refused.status, refused.headers["retry-after"]) == (503, "2")
    assert json.loads(refused.raw)["error"]["type"] == "service_unavailable"


async def test_restarted_decode_engine_loses_its_frontiers(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    history = await second_turn(rig, opening)
    rig.decode[0].restart()
    await rig.state.workers.probe(rig.state.workers.decode[0])
    assert len(await rig.state.store.held()) == 0
    assert (await rig.ask(history, conversation="c")).path == "cold"
    await settled(lambda: len(rig.decode[0].pinned) == 1)


async def test_restart_that_was_not_noticed_yet_is_survived(start: Any, opening: list[Message]) -> None:
    rig = await start()
    history = await second_turn(rig, opening)
    rig.decode[0].restart()
    answer = await rig.ask(history, conversation="c")
    assert (answer.path, answer.reason) == ("cold", "failed")


async def test_silent_prefill_is_given_up(start: Any, fault: Any, opening: list[Message]) -> None:
    rig = await start(prefills=2, router={"prefill_timeout": 0.3})
    history = await second_turn(rig, opening)
    home = next(engine for engine in rig.prefill if rig.legs(engine))
    home.faults.add(fault(kind="stall"))
    answer = await rig.ask(history, conversation="c")
    assert (answer.path, answer.reason) == ("cold", "failed")
    home.faults.clear()


async def test_idle_connection_that_the_engine_closed_costs_nothing(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start()
    await rig.ask(opening)
    rig.prefill[0].faults.add(fault(kind="drop"))  # what an idle close looks like: no byte of a reply
    await rig.ask(opening)
    assert rig.count("antiphon_retries_total", leg="prefill") == 0


async def test_wrong_engine_key_is_the_routers_fault(start: Any, opening: list[Message]) -> None:
    rig = await start(
        prefill={"api_key": "right"}, decode={"api_key": "right"}, router={"engine_key": "wrong"}
    )
    for reply in (
        await rig.client.post("/v1/chat/completions", json={"model": "simulated", "messages": opening}),
        await rig.client.get("/v1/models"),
    ):
        assert reply.status_code == 502
        assert "ANTIPHON_ENGINE_KEY" in reply.text
        assert "wrong" not in reply.text


async def test_engine_key_is_sent_instead_of_the_clients(start: Any, opening: list[Message]) -> None:
    rig = await start(
        prefill={"api_key": "right"}, decode={"api_key": "right"}, router={"engine_key": "right"}
    )
    headers = {"Authorization": "Bearer client"}
    first = await rig.ask(opening, conversation="c", headers=headers)
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c", headers=headers)
    assert second.path == "reuse"
    for engine in (*rig.prefill, *rig.decode):
        assert {r.headers["authorization"] for r in engine.requests} == {"Bearer right"}


@pytest.mark.parametrize("body", [b"[1, 2]", b'{"messages": [], "model": "\xff"}'])
async def test_body_that_is_not_json_is_refused(start: Any, body: bytes) -> None:
    rig = await start()
    reply = await rig.client.post("/v1/chat/completions", content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("chunked", [False, True])
async def test_body_above_the_limit_is_refused(start: Any, chunked: bool) -> None:
    rig = await start(router={"max_body": 1000})

    async def parts() -> Any:
        for _ in range(20):
            yield b" " * 100

    content: Any = parts() if chunked else b" " * 2000
    try:
        reply = await rig.client.post("/v1/chat/completions", content=content)
    except httpx.WriteError:
        return
    assert reply.status_code == 413


async def test_busy_engine_may_miss_a_probe(start: Any, fault: Any) -> None:
    rig = await start()
    worker = rig.state.workers.decode[0]
    rig.decode[0].faults.add(fault(kind="drop", path="/health", times=3))
    health = []
    for _ in range(4):
        await rig.state.workers.probe(worker)
        health.append(worker.healthy)
    assert health == [True, True, False, True]


async def test_what_a_new_life_pins_before_it_was_noticed_is_released(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    rig.decode[0].restart()
    await rig.ask(opening, conversation="c")  # recorded under the life that is over
    assert len(rig.decode[0].pinned) == 1
    await rig.state.workers.probe(rig.state.workers.decode[0])
    await settled(lambda: not rig.decode[0].pinned)


async def test_turn_that_outlives_its_engines_place_in_the_fleet_pins_nothing(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decodes=2, decode={"decode_rate": 100.0})
    asking = asyncio.create_task(rig.ask(opening, conversation="c"))
    await settled(lambda: any(engine.running for engine in rig.decode))
    home = next(engine for engine in rig.decode if engine.running)
    worker = next(w for w in rig.state.workers.decode if w.in_flight)
    await rig.state.workers.remove("decode", worker.url)
    await asking
    await settled(lambda: not home.pinned)
    assert not await rig.state.store.held()


async def test_what_a_turn_had_taken_when_its_engine_left_the_fleet_is_released(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decodes=2)
    await second_turn(rig, opening)
    (frontier,) = await rig.state.store.held()
    assert await rig.state.store.take(frontier.key) == frontier
    await rig.state.workers.remove("decode", frontier.worker)
    rig.state.leases.release_frontier(frontier)
    await settled(lambda: not any(engine.pinned for engine in rig.decode))


async def test_engine_that_cannot_tell_what_it_is_is_not_taken_for_a_stock_one(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start()
    worker = rig.state.workers.decode[0]
    await rig.state.workers.remove("decode", worker.url)
    rig.decode[0].faults.add(fault(kind="status", path="/antiphon/info", code=500))
    await rig.state.workers.add("decode", worker.url)
    (again,) = rig.state.workers.decode
    assert (again.healthy, again.stock) == (False, False)
    await rig.state.workers.probe(again)
    assert (again.healthy, again.stock, again.reuse) == (True, False, True)


async def test_what_was_taken_from_an_engine_that_has_not_told_yet_what_it_is_is_released(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    await second_turn(rig, opening)
    (frontier,) = await rig.state.store.held()
    rig.state.workers.decode[0].engine.info = None  # as on a router that has just come up beside another
    rig.state.leases.release_frontier(frontier)
    await settled(lambda: not rig.decode[0].pinned)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("broken", ["take", "record", "close", "tokens"])
async def test_store_that_breaks_costs_no_turn(
    start: Any,
    settled: Any,
    opening: list[Message],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
    stream: bool,
) -> None:
    rig = await start(router={"paths": ["reuse"]})
    first = await rig.ask(opening, conversation="c")

    async def fails(*args: Any) -> Any:
        raise RuntimeError("the store is broken")

    monkeypatch.setattr(rig.state.store, broken, fails)
    final = {"x-session-final": "true"} if broken == "close" else {}
    history = [*opening, first.message, FOLLOW]
    await rig.ask(history, conversation="c", stream=stream, headers=final)
    monkeypatch.undo()
    assert "turn.crashed" not in caplog.text
    await rig.client.delete("/v1/conversations/c")
    if broken != "take":  # nobody knows what it handed out
        await settled(lambda: rig.decode[0].pinned_blocks == rig.prefill[0].pinned_blocks == 0)


async def test_handle_that_cannot_be_read_costs_no_turn(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    history = await second_turn(rig, opening)
    (frontier,) = await rig.state.store.held()
    await rig.state.store.record(dataclasses.replace(frontier, handle=b"\x00 of another version"))
    answer = await rig.ask(history, conversation="c")
    assert (answer.path, answer.reason) == ("cold", "foreign")
    await settled(lambda: len(rig.decode[0].pinned) == 1)


async def test_client_is_not_told_where_engines_are(start: Any, opening: list[Message]) -> None:
    rig = await start(router={"attempts": 1})
    await rig.kill(rig.decode[0])
    refused = await rig.ask(opening, check=False)
    assert refused.status == 502
    assert b"refused" in refused.raw
    assert b"127.0.0.1" not in refused.raw


async def test_what_another_router_recorded_of_a_life_not_noticed_yet_is_released(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    await second_turn(rig, opening)
    (frontier,) = await rig.state.store.held()
    info = rig.state.workers.decode[0].engine.info
    rig.state.workers.decode[0].engine.info = msgspec.structs.replace(info, epoch="earlier")
    rig.state.leases.release_frontier(frontier)
    await settled(lambda: not rig.decode[0].pinned)
