"""Very many streams at once, and very many turns one after another: none is lost, nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from typing import Any

import psutil
import pytest

from antiphon_server.simulator.generation import Generation

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}
STREAMS = 1200


class Gate:
    """Holds every stream of the decode engines after its first token."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = asyncio.Event()
        outputs = Generation._outputs

        async def held(generation: Generation) -> Any:
            count = 0
            async for output in outputs(generation):
                if count and generation._ask.stream:
                    await self.opened.wait()
                count += 1
                yield output

        monkeypatch.setattr(Generation, "_outputs", held)


async def stream(url: Any, conversation: str, messages: list[Message], begun: Any) -> bytes:
    """One stream over a connection of its own; calls ``begun`` at its first event."""
    body = {"model": "simulated", "messages": messages, "stream": True, "max_tokens": 4}
    data = json.dumps(body | {"conversation_id": conversation}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {url.host}\r\ncontent-length: {len(data)}\r\n"
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(f"{head}connection: close\r\n\r\n".encode() + data)
        first = await reader.readuntil(b"data: ")
        begun()
        return first + await reader.read()
    finally:
        writer.close()


async def test_more_than_a_thousand_streams_are_open_at_once_and_none_is_lost(
    start: Any, settled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # https://github.com/vllm-project/production-stack/issues/448
    rig = await start(
        prefill={"capacity": 8 * STREAMS}, decode={"capacity": 8 * STREAMS}, router={"max_turns": STREAMS}
    )
    gate, begun = Gate(monkeypatch), 0

    def count() -> None:
        nonlocal begun
        begun += 1
        if begun == STREAMS:
            assert rig.count("antiphon_turns_in_flight") == STREAMS
            assert rig.state.workers.decode[0].in_flight == STREAMS
            gate.opened.set()

    question: list[Message] = [{"role": "user", "content": "Name some letters."}]
    async with asyncio.timeout(60):
        streams = [stream(rig.client.base_url, f"c{i}", question, count) for i in range(STREAMS)]
        replies = await asyncio.gather(*streams)
    assert all(reply.startswith(b"HTTP/1.1 200") for reply in replies)
    assert all(b"data: [DONE]" in reply for reply in replies)
    await settled(lambda: rig.count("antiphon_turns_in_flight") == 0)
    assert all(worker.in_flight == 0 for worker in rig.state.workers)


async def turns(rig: Any, fault: Any, conversations: range) -> None:
    """Conversations of four turns each: whole, streamed, failed by an engine, refused, left by the client."""

    async def one(number: int, turn: int) -> None:
        body: dict[str, Any] = {"model": "simulated", "conversation_id": f"soak-{number}", "max_tokens": 4}
        body["messages"] = [{"role": "user", "content": f"{number} " * 8}, *[FOLLOW] * turn]
        body["stream"] = bool(number % 2)
        if number % 7 == 0:
            body["max_tokens"] = 10_000_000
        post = asyncio.create_task(rig.client.post("/v1/chat/completions", json=body))
        if number % 3 == 0 and turn == 2:
            await asyncio.wait({post}, timeout=0.005)
            post.cancel()
            await asyncio.wait({post})
        else:
            assert (await post).status_code == (400 if number % 7 == 0 else 200)

    async def conversation(number: int) -> None:
        for turn in range(4):
            await one(number, turn)
        if number % 4 == 0:
            await rig.client.delete(f"/v1/conversations/soak-{number}")

    for first in conversations[::8]:
        rig.decode[first // 8 % 2].faults.add(fault(kind="status", code=500))
        await asyncio.gather(*(conversation(number) for number in range(first, first + 8)))
        for engine in (*rig.prefill, *rig.decode):
            engine.requests.clear()
        rig.clock.time += 10.0


async def test_nothing_stays_behind_of_a_thousand_turns(
    start: Any, settled: Any, fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # https://github.com/vllm-project/production-stack/issues/1072
    caplog.set_level(logging.CRITICAL)  # the fixture would keep what is logged
    bounds = {"conversations": 16, "tenant_conversations": 16, "known": 64, "responses": 64}
    patient = {"breaker_failures": 10_000, "breaker_ratio": 1.0, "pair_failures": 10_000}
    rig = await start(
        prefills=2,
        decodes=2,
        prefill={"capacity": 192},
        decode={"capacity": 192},
        router=bounds | {"paths": ["cold", "reuse", "append"], "retry_pause": 0.0} | patient,
    )
    process = psutil.Process()

    async def quiet() -> tuple[int, int]:
        """Objects alive and bytes of memory, once nothing is under way."""
        await settled(lambda: rig.count("antiphon_turns_in_flight") == 0)
        await settled(lambda: not rig.state._background and all(w.in_flight == 0 for w in rig.state.workers))
        await settled(lambda: all(engine.running == 0 for engine in (*rig.prefill, *rig.decode)))
        await rig.state.upstream.close()  # how many connections are kept alive is chance
        await asyncio.sleep(0.1)  # until the engines have seen it
        gc.collect()
        return len(gc.get_objects()), process.memory_info().rss

    await turns(rig, fault, range(96))
    objects, resident = await quiet()
    await turns(rig, fault, range(96, 320))
    objects_then, resident_then = await quiet()
    assert objects_then - objects < 448  # half an object a turn
    assert resident_then - resident < 16e6  # what 18 KB a turn would come to
