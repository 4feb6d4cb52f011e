"""A turn's connection past ASGI: bodies however they come, clients that leave, heads and chunks."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from antiphon_server.router.gate import bounds
from antiphon_server.router.gate.line import LONGEST_BODY, Line, offer, take_line
from antiphon_server.router.turn.reply import Reply

Message = dict[str, Any]
CHAT = "/v1/chat/completions"
SENT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\n"


class Recorder:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing


def a_line(**cycle: Any) -> tuple[Line, Recorder, Any]:
    given: dict[str, Any] = {
        "chunked_encoding": True,
        "disconnected": False,
        "more_body": False,
        "body": bytearray(b"body"),
        "waiting_for_100_continue": False,
        "flow": SimpleNamespace(write_paused=False),
    }
    stub = SimpleNamespace(**(given | cycle))
    recorder = Recorder()
    return Line(stub, cast("asyncio.Transport", recorder)), recorder, stub


def test_head_leaves_with_what_comes_first() -> None:
    line, transport, _ = a_line()
    line.hold_head()
    line.write(b"head")
    assert transport.written == []
    assert not line.send(b"chunk")
    line.write(b"first")
    line.write(b"second")
    assert transport.written == [b"headfirst", b"second"]


def test_head_without_a_body_leaves_before_the_connection_closes() -> None:
    line, transport, _ = a_line()
    line.hold_head()
    line.write(b"head")
    line.close()
    assert (transport.written, transport.closing) == ([b"head"], True)


def test_chunk_is_framed() -> None:
    line, transport, _ = a_line()
    assert line.send(b"x" * 26)
    assert transport.written == [b"1a\r\n" + b"x" * 26 + b"\r\n"]


@pytest.mark.parametrize(
    "cycle",
    [
        {"flow": SimpleNamespace(write_paused=True)},
        {"chunked_encoding": False},
        {"chunked_encoding": None},
        {"disconnected": True},
    ],
    ids=["slow client", "known length", "no head", "client gone"],
)
def test_chunk_that_cannot_go_now_is_refused(cycle: dict[str, Any]) -> None:
    line, transport, _ = a_line(**cycle)
    assert not line.send(b"chunk")
    assert transport.written == []


@pytest.mark.parametrize(
    ("length", "waits", "offered"),
    [
        (b"10", False, True),
        (str(LONGEST_BODY).encode(), False, True),
        (str(LONGEST_BODY + 1).encode(), False, False),
        (b"10", True, False),
        (None, False, False),
    ],
    ids=["short", "longest", "longer", "waits for 100", "unknown"],
)
def test_offered_where_the_whole_body_will_be_here(length: bytes | None, waits: bool, offered: bool) -> None:
    _, transport, cycle = a_line(waiting_for_100_continue=waits)
    scope: dict[str, Any] = {"headers": [(b"content-length", length)] if length is not None else []}
    line = offer(scope, cycle, cast("asyncio.Transport", transport))
    assert (line is not None, take_line(scope)) == (offered, line)


def test_client_that_left_before_anybody_watched_is_told_of() -> None:
    line, _, cycle = a_line(disconnected=False)
    told: list[str] = []
    line.left()
    cycle.disconnected = True
    line.watch(lambda: told.append("left"))
    assert told == ["left"]
    line.watch(None)
    line.left()
    assert told == ["left"]


async def test_nothing_of_a_turn_is_left_to_the_garbage_collector(start: Any, opening: list[Message]) -> None:
    rig = await start()
    lines: list[weakref.ref[Line]] = []

    def offered(*args: Any) -> Line | None:
        line = offer(*args)
        lines.extend([weakref.ref(line)] if line is not None else [])
        return line

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bounds, "offer", offered)
            for stream in (False, True, False):
                await rig.ask(opening, conversation="c", stream=stream)
            for _ in range(3):
                await rig.client.post("/tokenize", json={"model": "simulated", "prompt": "x"})
        assert len(lines) == 6
        gone = [line() is None for line in lines]
    finally:
        gc.enable()
    assert gone.count(False) <= 1  # the last request's: its connection still has it


async def connected(rig: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", rig.client.base_url.port)


def asking(messages: list[Message], **body: Any) -> bytes:
    return json.dumps({"model": "simulated", "messages": messages, **body}).encode()


async def replied(reader: asyncio.StreamReader) -> Any:
    """The next reply's body, which is of a known length."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return json.loads(await reader.readexactly(int(length.split(b":")[1])))


async def test_body_may_come_in_parts(start: Any, opening: list[Message]) -> None:
    rig = await start()
    reader, writer = await connected(rig)
    body = asking(opening)
    writer.write(SENT + b"Content-Length: %d\r\n\r\n" % len(body))
    for part in (body[:10], body[10:50], body[50:]):
        await asyncio.sleep(0.02)
        assert not rig.legs(rig.prefill[0])
        writer.write(part)
    assert (await replied(reader))["choices"]
    writer.close()


async def test_client_that_leaves_with_half_a_body_is_noticed(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    _, writer = await connected(rig)
    body = asking(opening)
    writer.write(SENT + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10])
    await settled(lambda: rig.state.admission.in_flight == 1)
    writer.close()
    await settled(lambda: rig.count("antiphon_clients_gone_total", phase="body") == 1)
    assert rig.state.admission.in_flight == 0


async def test_client_that_wants_to_be_told_to_go_on_is_told(start: Any, opening: list[Message]) -> None:
    rig = await start()
    reader, writer = await connected(rig)
    body = asking(opening)
    writer.write(SENT + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
    assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 100")
    writer.write(body)
    assert (await replied(reader))["choices"]
    writer.close()


async def test_requests_on_one_connection_are_answered_in_order(start: Any, opening: list[Message]) -> None:
    rig = await start()
    reader, writer = await connected(rig)
    bodies = [asking(opening, max_tokens=count) for count in (1, 2, 3)]
    writer.write(b"".join(SENT + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies))
    counts = [(await replied(reader))["usage"]["completion_tokens"] for _ in bodies]
    assert counts == [1, 2, 3]
    writer.close()


async def chunked(body: bytes) -> AsyncIterator[bytes]:
    yield body[:20]
    yield body[20:]


async def test_body_of_unknown_length_is_served(start: Any, opening: list[Message]) -> None:
    rig = await start()
    reply = await rig.client.post(CHAT, content=chunked(asking(opening)))
    assert reply.json()["choices"]


async def test_client_that_leaves_after_a_body_of_unknown_length_is_noticed(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(prefill={"prefill_rate": 20.0})
    task = asyncio.create_task(rig.client.post(CHAT, content=chunked(asking(opening))))
    await settled(lambda: rig.prefill[0].running)
    task.cancel()
    await settled(lambda: rig.prefill[0].counters.aborted == 1)
    assert rig.count("antiphon_clients_gone_total", phase="prefill") == 1


async def test_chunks_pass_without_waking_the_turn(
    start: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start(decode={"decode_rate": 500.0})
    passed: list[bytes] = []
    original = Reply.pass_on

    def pass_on(self: Reply, data: bytes) -> bool:
        sent = original(self, data)
        passed.extend([data] if sent else [])
        return sent

    monkeypatch.setattr(Reply, "pass_on", pass_on)
    answer = await rig.ask(opening, conversation="c", stream=True, max_tokens=40)
    assert len(passed) > 20
    assert all(data in answer.raw for data in passed)
    follow: Message = {"role": "user", "content": "And the next ones?"}
    assert (await rig.ask([*opening, answer.message, follow], conversation="c", stream=True)).path == "reuse"
