"""The player by itself, against a server that does what no engine should."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from antiphon_server.bench.arms import Arm
from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.play import Manner, Player
from antiphon_server.bench.replay.ruler import Ruler
from antiphon_server.bench.replay.script import Script, Turn

CHUNK = {
    "id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m",
    "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None, "token_ids": [1]}],
}  # fmt: skip
END = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
TURNS = tuple(Turn(gap, ({"role": "user", "content": "go on"},), 2) for gap in (0.0, 30.0))


@contextlib.asynccontextmanager
async def serving(*chunks: object) -> AsyncIterator[str]:
    """Every turn gets these events, and an end as if all were well; the metrics count turns."""
    turns = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turns
        asked = await reader.readuntil(b"\r\n\r\n")
        if asked.startswith(b"GET /metrics "):
            writer.write(HEAD + f'antiphon_append_declined_total{{reason="off"}} {turns}\n'.encode())
        else:
            turns += 1
            events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
            writer.write(HEAD + b"".join(events) + b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def play(url: str, slept: list[float]) -> Player:
    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    arm = Arm("plain", url, stamps=False)
    player = Player(Manner("m", Ruler(), Pace(speed=10.0), clients=2, start=8.0), [arm], sleep=sleep)
    try:
        await player.play([Script("a", TURNS), Script("b", TURNS)])
    finally:
        await player.close()
    return player


async def test_an_answer_without_an_end_is_a_failed_turn() -> None:
    async with serving(CHUNK) as url:
        played = (await play(url, [])).played
    assert [turn.error for turn in played.turns] == [
        "ConnectionError: the answer broke off after 1 tokens"
    ] * 2


async def test_gaps_and_starts_are_slept() -> None:
    slept: list[float] = []
    async with serving(CHUNK, END) as url:
        played = (await play(url, slept)).played
    assert [turn.error for turn in played.turns] == [None] * 4
    assert sorted(slept) == [3.0, 3.0, 4.0]


async def test_the_loop_runs_on_while_the_router_is_asked_what_it_counted() -> None:
    # This server is in the same loop.
    async with serving(CHUNK, END) as url:
        played = (await play(url, [])).played
    assert played.declined == {"plain": {"off": 4}}
