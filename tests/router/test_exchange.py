"""A leg and what comes back for it: its own reply, whole, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from antiphon_server.router.state import State
from antiphon_server.router.turn.exchange import Exchange, LegFailedError
from antiphon_server.router.upstream.upstream import Origin, Timeouts, Upstream
from antiphon_server.simulator.generation import Generation
from antiphon_server.simulator.reply import ChatReply

Message = dict[str, Any]
LIMITS = Timeouts(connect=5.0, first=5.0, idle=5.0)


class Rig:
    """Sends legs to one address."""

    def __init__(self, upstream: Upstream, origin: Origin, *, names_legs: bool) -> None:
        self.forgotten: list[str] = []
        settings = SimpleNamespace(connect_timeout=5.0, idle_timeout=5.0, max_reply=1000)
        self.state = SimpleNamespace(
            settings=settings,
            engine_headers=(),
            upstream=upstream,
            leases=SimpleNamespace(release_leg=lambda _, leg: self.forgotten.append(leg)),
            workers=SimpleNamespace(suspect=lambda *_, **__: None),
            clock=lambda: 0.0,
        )
        self.worker = SimpleNamespace(
            origin=origin,
            headers=(),
            role="decode",
            engine=SimpleNamespace(names_legs=names_legs),
            failed=lambda _: None,
            succeeded=lambda _: None,
        )

    async def ask(self, name: str) -> bytes:
        """A leg's whole reply."""
        request = SimpleNamespace(headers={}, path="/v1/chat/completions")
        exchange = Exchange(cast("State", self.state))
        leg = exchange.leg(
            cast("Any", self.worker), cast("Any", request), b"{}", request_id=name, first=5.0, repeat=False
        )
        return await leg.read(bytes)


def reply(body: bytes, name: str | None) -> bytes:
    said = f"X-Antiphon-Leg: {name}\r\n" if name is not None else ""
    return f"HTTP/1.1 200 OK\r\n{said}Content-Length: {len(body)}\r\n\r\n".encode() + body


Answer = Callable[[str], list[bytes]]


@asynccontextmanager
async def engine(answer: Answer, *, names_legs: bool = True) -> AsyncIterator[Rig]:
    """``answer``: what is sent for a leg of that name, each part when the one before it was read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await reader.readexactly(2)
                for part in answer(head.split("X-Request-Id: ")[1].split("\r\n")[0]):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.05)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream(LIMITS)
    try:
        port = listening.sockets[0].getsockname()[1]
        yield Rig(upstream, Origin.parse(f"http://127.0.0.1:{port}"), names_legs=names_legs)
    finally:
        await upstream.close()
        listening.close()


async def test_reply_that_names_its_leg_is_taken() -> None:
    async with engine(lambda name: [reply(b"ok", name)]) as rig:
        assert [await rig.ask("a"), await rig.ask("b")] == [b"ok", b"ok"]
        assert rig.forgotten == []


@pytest.mark.parametrize("named", ["a", None])
async def test_reply_that_nobody_asked_for_is_not_the_next_legs(named: str | None) -> None:
    # The unasked reply is on its way when the next leg is sent, so it comes first.
    def answer(name: str) -> list[bytes]:
        return [reply(name.encode(), name), reply(b"stolen", named)]

    async with engine(answer) as rig:
        assert await rig.ask("a") == b"a"
        sent = asyncio.create_task(rig.ask("b"))
        with pytest.raises(LegFailedError, match="does not name the request"):
            await sent
        assert rig.forgotten == ["b"]
        assert await rig.ask("c") == b"c"  # on a connection of its own


async def test_engine_that_does_not_name_legs_is_believed() -> None:
    async with engine(lambda _: [reply(b"ok", None)], names_legs=False) as rig:
        assert await rig.ask("a") == b"ok"


@pytest.mark.parametrize("stream", [False, True])
async def test_every_engine_that_names_legs_does_so_on_all_replies(
    start: Any, opening: list[Message], stream: bool
) -> None:
    rig = await start()
    assert all(worker.engine.names_legs for worker in rig.state.workers)
    assert (await rig.ask(opening, conversation="c", stream=stream)).status == 200


async def test_stream_that_ends_without_its_last_event_is_told(
    start: Any, settled: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start()
    monkeypatch.setattr(ChatReply, "closing", lambda *_: [b'data: {"cut'])
    body = {"model": "simulated", "messages": opening, "stream": True, "conversation_id": "c"}
    reply = await rig.client.post("/v1/chat/completions", json=body)
    last = reply.text.rstrip().split("\n\n")[-1]
    assert last.startswith('data: {"error"')
    assert "ended without the last event" in last
    assert '"cut' not in reply.text
    await settled(lambda: not rig.decode[0].pinned_blocks)


Spoil = Callable[[Message], Awaitable[Message]]


def spoiling(monkeypatch: pytest.MonkeyPatch, of: Any, spoil: Spoil) -> list[bool]:
    """Spoils the first whole reply of an engine. Returns whether it was ``of``, for each reply."""
    whole, own = Generation._whole, []

    async def once(self: Generation, scope: Any, receive: Any, send: Any) -> None:
        async def spoilt(message: Any) -> None:
            await send(await spoil(message))

        own.append(self._engine is of)
        await whole(self, scope, receive, spoilt if own[-1] and sum(own) == 1 else send)

    monkeypatch.setattr(Generation, "_whole", once)
    return own


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("cut", [b"", b'{"id": "x", "choices": [{"mess'])
async def test_whole_reply_that_is_cut_off_is_asked_for_again(
    start: Any, settled: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch, cut: bytes, role: str
) -> None:
    rig = await start()
    engine = getattr(rig, role)[0]

    async def cutting(message: Message) -> Message:
        if message["type"] == "http.response.body":
            return {**message, "body": cut}
        fields = [(name, value) for name, value in message["headers"] if name != b"content-length"]
        return {**message, "headers": [*fields, (b"content-length", str(len(cut)).encode())]}

    own = spoiling(monkeypatch, engine, cutting)
    assert (await rig.ask(opening)).status == 200
    assert sum(own) == 2
    await settled(lambda: not engine.pinned_blocks)


async def test_what_a_leg_keeps_whose_reply_breaks_off_is_released(
    start: Any, settled: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start(router={"attempts": 1})

    async def dropping(message: Message) -> Message:
        if message["type"] == "http.response.body":
            raise ConnectionError("the connection is cut")
        return message

    spoiling(monkeypatch, rig.decode[0], dropping)
    body = {"model": "simulated", "messages": opening, "conversation_id": "c"}
    assert (await rig.client.post("/v1/chat/completions", json=body)).status_code == 502
    await settled(lambda: not rig.decode[0].pinned_blocks)


async def test_nothing_is_asked_of_an_engine_that_was_not_reached(start: Any, opening: list[Message]) -> None:
    rig = await start(router={"attempts": 1})
    await rig.kill(rig.decode[0])
    body = {"model": "simulated", "messages": opening, "conversation_id": "c"}
    assert (await rig.client.post("/v1/chat/completions", json=body)).status_code in {502, 503}
    assert rig.state.leases.pending(rig.state.workers.decode[0], hurry=False) is None
