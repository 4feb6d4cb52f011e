"""Clients leave in each phase: pulls end undisturbed, the rest is cancelled, and nothing stays pinned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon_server.router.turn.exchange import Leg
from antiphon_server.router.upstream.connection import Connection
from antiphon_server.router.upstream.upstream import Response
from antiphon_server.simulator.faults import Fault

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}


def sending(rig: Any, messages: list[Message], **body: Any) -> asyncio.Task[Any]:
    request = {"model": "simulated", "messages": messages, **body}
    return asyncio.create_task(rig.client.post("/v1/chat/completions", json=request))


async def leave(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def clean(rig: Any) -> bool:
    return all(engine.pinned_blocks == 0 and engine.running == 0 for engine in (*rig.prefill, *rig.decode))


async def test_cold_prefill_is_cancelled(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start(prefill={"prefill_rate": 20.0})
    task = sending(rig, opening, conversation_id="c")
    await settled(lambda: rig.prefill[0].running)
    await leave(task)
    await settled(lambda: rig.prefill[0].counters.aborted == 1)
    await settled(lambda: clean(rig))
    assert rig.count("antiphon_clients_gone_total", phase="prefill") == 1
    assert not rig.legs(rig.decode[0])


@pytest.mark.parametrize("stream", [False, True])
async def test_pull_ends_undisturbed_and_everything_is_released(
    start: Any, settled: Any, opening: list[Message], stream: bool
) -> None:
    rig = await start(prefill={"transfer_rate": 500.0})
    first = await rig.ask(opening, conversation="c")
    task = sending(rig, [*opening, first.message, FOLLOW], conversation_id="c", stream=stream)
    await settled(lambda: rig.prefill[0].running)
    await leave(task)
    await settled(lambda: rig.count("antiphon_clients_gone_total", phase="pull") == 1)
    await settled(lambda: clean(rig))
    assert rig.prefill[0].counters.aborted == rig.prefill[0].counters.aborted_pulls == 0
    assert rig.prefill[0].counters.pulled > 0


async def test_decode_that_pulls_is_left_until_its_first_byte(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"transfer_rate": 500.0, "decode_rate": 20.0})
    task = sending(rig, opening, conversation_id="c", stream=True)
    await settled(lambda: rig.decode[0].running)
    await leave(task)
    await settled(lambda: rig.decode[0].counters.aborted == 1)
    await settled(lambda: clean(rig))
    assert rig.decode[0].counters.aborted_pulls == 0


async def test_decode_that_pulls_for_a_whole_reply_is_left_to_end(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"transfer_rate": 500.0})
    task = sending(rig, opening, conversation_id="c")
    await settled(lambda: rig.decode[0].running)
    await leave(task)
    await settled(lambda: rig.count("antiphon_clients_gone_total", phase="decode") == 1)
    await settled(lambda: clean(rig))
    assert rig.decode[0].counters.aborted == rig.decode[0].counters.aborted_pulls == 0


async def test_prefills_kv_is_released_when_decode_refuses_after_the_client_left(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    rig.decode[0].faults.add(Fault(kind="status", code=400, seconds=0.3))
    task = sending(rig, opening, conversation_id="c")
    await settled(lambda: rig.prefill[0].pinned_blocks)
    await settled(lambda: not len(rig.decode[0].faults))
    await leave(task)
    await settled(lambda: clean(rig))


async def test_whole_reply_that_nobody_waits_for_is_cancelled_once_its_pull_must_be_over(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 1.0}, router={"pull_grace": 0.2})
    task = sending(rig, opening, conversation_id="c")
    await settled(lambda: rig.decode[0].running)
    await leave(task)
    await settled(lambda: rig.decode[0].counters.aborted == 1)
    await settled(lambda: clean(rig))
    assert rig.decode[0].counters.aborted_pulls == 0


async def test_stream_is_cancelled(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start(decode={"decode_rate": 20.0})
    body = {"model": "simulated", "messages": opening, "stream": True, "conversation_id": "c"}
    async with rig.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        await anext(reply.aiter_raw())
    await settled(lambda: rig.decode[0].counters.aborted == 1)
    await settled(lambda: clean(rig))
    assert rig.count("antiphon_clients_gone_total", phase="stream") == 1


async def test_counters_return_to_zero(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start(decode={"decode_rate": 200.0}, prefill={"prefill_rate": 2000.0})
    tasks = [sending(rig, opening, conversation_id=f"c{i % 3}", stream=bool(i % 2)) for i in range(12)]
    await settled(lambda: rig.decode[0].running)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await settled(lambda: all(worker.in_flight == 0 for worker in rig.state.workers))
    for i in range(3):
        await rig.client.delete(f"/v1/conversations/c{i}")
    await settled(lambda: clean(rig))


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_between_the_legs_leaves_nothing_on_prefill(
    start: Any, settled: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    # https://github.com/ai-dynamo/dynamo/issues/13855
    rig = await start()
    waiting = asyncio.Event()

    async def make_room(*args: Any) -> None:
        waiting.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.state.conversations, "make_room", make_room)
    task = sending(rig, opening, conversation_id="c", stream=stream)
    await waiting.wait()
    assert rig.prefill[0].pinned_blocks > 0
    await leave(task)
    await settled(lambda: clean(rig))
    assert not rig.legs(rig.decode[0])


async def test_whole_reply_that_is_on_its_way_is_read_for_its_handle(
    start: Any, settled: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    comes, read = asyncio.Event(), Leg.read

    async def late(self: Leg, parse: Any) -> Any:
        if self._worker.role == "decode":
            await comes.wait()
        return await read(self, parse)

    monkeypatch.setattr(Leg, "read", late)
    monkeypatch.setattr(Response, "complete", False)
    task = sending(rig, opening, conversation_id="c")
    await settled(lambda: rig.decode[0].pinned)
    await leave(task)
    await settled(lambda: rig.count("antiphon_clients_gone_total", phase="decode") == 1)
    comes.set()
    await settled(lambda: clean(rig))


@pytest.mark.parametrize("stream", [False, True])
async def test_prefill_that_has_finished_unheard_is_released(
    start: Any, settled: Any, opening: list[Message], stream: bool
) -> None:
    rig = await start()
    rig.prefill[0].faults.add(Fault(kind="slow", seconds=60.0))
    task = sending(rig, opening, conversation_id="c", stream=stream)
    await settled(lambda: rig.prefill[0].pinned_blocks)
    await leave(task)
    await settled(lambda: clean(rig))


async def test_prefill_that_has_finished_when_patience_ends_is_released(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(router={"prefill_timeout": 0.2, "attempts": 1})
    rig.prefill[0].faults.add(Fault(kind="slow", seconds=60.0))
    reply = await sending(rig, opening, conversation_id="c")
    assert reply.status_code == 504
    await settled(lambda: clean(rig))


async def test_whole_reply_that_is_too_large_is_released(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(router={"max_reply": 1024, "attempts": 1})
    reply = await sending(rig, opening, conversation_id="c")
    assert (reply.status_code, "larger than 1024 bytes" in reply.text) == (502, True)
    await settled(lambda: clean(rig))


async def test_stream_whose_handle_is_on_its_way_is_released(
    start: Any, settled: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, late = Connection.data_received, set()

    def receive(self: Connection, data: bytes) -> None:
        """The handle and all that follows it does not arrive."""
        if b"antiphon.handle" in data:
            late.add(self)
        if self not in late:
            arrived(self, data)

    monkeypatch.setattr(Connection, "data_received", receive)
    rig = await start(decode={"decode_rate": 2000.0})
    body = {"model": "simulated", "messages": opening, "stream": True, "conversation_id": "c"}
    async with rig.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        chunks = reply.aiter_raw()
        await anext(chunks)
        await settled(lambda: rig.decode[0].pinned)
    await settled(lambda: clean(rig))


@pytest.mark.parametrize("leaves", [True, False])
async def test_kv_of_a_stream_whose_handle_came_is_kept_though_its_end_does_not(
    start: Any, settled: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    # The leg is closed unfinished; freed by its name, its blocks would be another's when they are read.
    arrived, late = Connection.data_received, set()

    def receive(self: Connection, data: bytes) -> None:
        if b"data: [DONE]" in data:
            arrived(self, data[: data.index(b"data: [DONE]")])
            late.add(self)
        if self not in late:
            arrived(self, data)

    monkeypatch.setattr(Connection, "data_received", receive)
    rig = await start(router={"idle_timeout": 60.0 if leaves else 0.3})
    body = {"model": "simulated", "messages": opening, "stream": True, "conversation_id": "c"}
    async with rig.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        chunks = reply.aiter_raw()
        while not late:
            await anext(chunks)
        if not leaves:
            assert b"engine_timeout" in b"".join([chunk async for chunk in chunks])
    await settled(lambda: all(worker.in_flight == 0 for worker in rig.state.workers))
    await rig.state.leases.flush()
    assert [frontier.lease for frontier in await rig.state.store.held()] == rig.decode[0].pinned != []


@pytest.mark.parametrize("stream", [False, True])
async def test_room_of_a_turn_that_was_left_is_free_when_its_leg_has_ended(
    start: Any, settled: Any, opening: list[Message], stream: bool
) -> None:
    # The clock stands still, so nothing is free because time has passed.
    rig = await start(decode={"transfer_rate": 500.0, "decode_rate": 200.0})
    task = sending(rig, opening, conversation_id="c", stream=stream)
    await settled(lambda: rig.decode[0].running)
    await leave(task)
    room = rig.state.rooms.of(rig.state.workers.decode[0])
    await settled(lambda: room.leaving)
    await settled(lambda: clean(rig))
    await settled(lambda: room.leaving == room.busy == 0)
