"""The simulated engine on real sockets: what a client sees when things go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from antiphon_server.simulator import Fault, Settings, SimulatedEngine, serve

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Count to ten."}],
    "kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": False},
}
STREAM = {**BODY, "stream": True}
CHAT = "/v1/chat/completions"
Served = tuple[SimulatedEngine, httpx.AsyncClient]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    engine = SimulatedEngine(Settings())
    async with serve(engine) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        yield engine, client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def follow(client: httpx.AsyncClient, seen: Callable[[str], None]) -> None:
    async with client.stream("POST", CHAT, json=STREAM) as reply:
        async for line in reply.aiter_lines():
            if line:
                seen(line)


async def test_a_stream_comes_chunk_by_chunk(served: Served) -> None:
    _, client = served
    lines: list[str] = []
    await follow(client, lines.append)
    assert lines[-1] == "data: [DONE]"
    assert len(lines) == 1 + 24 + 1 + 1


@pytest.mark.parametrize("worked", [False, True])
async def test_a_dropped_connection_ends_before_the_first_byte(served: Served, worked: bool) -> None:
    engine, client = served
    engine.faults.add(Fault(kind="drop", worked=worked))
    with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
        await client.post(CHAT, json=BODY)
    assert len(engine.pinned) == int(worked)
    assert (await client.post(CHAT, json=BODY)).status_code == 200


async def test_a_cut_stream_ends_after_so_many_chunks_and_frees_its_blocks(served: Served) -> None:
    engine, client = served
    engine.faults.add(Fault(kind="cut", chunks=3))
    seen: list[str] = []
    with pytest.raises(httpx.RemoteProtocolError):
        await follow(client, seen.append)
    assert len(seen) == 3
    await until(lambda: engine.running == 0)
    assert engine.used_blocks == 0


async def test_a_cut_whole_reply_ends_inside_its_body(served: Served) -> None:
    engine, client = served
    engine.faults.add(Fault(kind="cut"))
    with pytest.raises(httpx.RemoteProtocolError):
        await client.post(CHAT, json=BODY)


async def test_a_client_that_leaves_aborts_its_request_and_pins_nothing() -> None:
    engine = SimulatedEngine(Settings(decode_rate=20.0, answer_tokens=10_000))
    async with serve(engine) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        async with client.stream("POST", CHAT, json=STREAM) as reply:
            await anext(reply.aiter_lines())
            assert engine.running == 1
        await until(lambda: engine.running == 0)
        assert (engine.counters.aborted, engine.pinned, engine.used_blocks) == (1, [], 0)
        waiting = asyncio.create_task(client.post(CHAT, json=BODY))
        await until(lambda: engine.running == 1)
        waiting.cancel()
        await until(lambda: engine.running == 0)
        assert (engine.counters.aborted, engine.used_blocks) == (2, 0)


async def test_a_stalled_engine_reads_no_more_and_never_answers(served: Served) -> None:
    engine, client = served
    engine.faults.add(Fault(kind="stall"))
    with pytest.raises(httpx.WriteTimeout):
        await client.post(CHAT, content=b" " * 30_000_000, timeout=httpx.Timeout(10, write=0.3))
    assert engine.requests == []
    engine.faults.clear()
    assert (await client.post(CHAT, json=BODY)).status_code == 200


@pytest.mark.parametrize(("kind", "worked"), [("delay", 0), ("slow", 1)])
async def test_a_slow_engine_answers_at_last(served: Served, kind: Any, worked: int) -> None:
    engine, client = served
    engine.faults.add(Fault(kind=kind, seconds=3600))
    slow = asyncio.create_task(client.post(CHAT, json=BODY))
    await until(lambda: len(engine.faults) == 0 and len(engine.pinned) == worked)
    assert not slow.done()
    engine.faults.clear()
    assert (await slow).status_code == 200
    engine.faults.add(Fault(kind=kind, seconds=0.01))
    assert (await client.post(CHAT, json=BODY)).status_code == 200


async def test_a_restart_drops_the_streams_in_flight() -> None:
    engine = SimulatedEngine(Settings(decode_rate=50.0, answer_tokens=10_000))
    async with serve(engine) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await follow(client, lambda _: engine.restart())
        assert (await client.get("/health")).status_code == 200


async def test_leaving_kills_the_engine_and_it_can_come_back_on_its_port() -> None:
    engine = SimulatedEngine(Settings(decode_rate=50.0, answer_tokens=10_000))
    async with httpx.AsyncClient(timeout=10) as client:
        async with serve(engine) as url:
            hung = asyncio.create_task(client.post(url + CHAT, json=BODY))
            await until(lambda: engine.running == 1)
            before = engine.epoch
        with pytest.raises(httpx.RemoteProtocolError):
            await hung
        with pytest.raises(httpx.ConnectError):
            await client.get(url + "/health")
        async with serve(engine, port=int(url.rsplit(":", 1)[1])) as again:
            assert again == url
            assert (await client.get(url + "/health")).status_code == 200
            assert engine.epoch != before
