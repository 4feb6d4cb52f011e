"""Connections as clients use and misuse them: upgrades, requests sent ahead, garbage, untaken replies."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from antiphon_server.router.app import create_app
from antiphon_server.router.config.config import Loaded
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.gate.bounds import BoundedProtocol, protocol_within
from antiphon_server.router.gate.line import take_line
from antiphon_server.router.gate.upgrade import plain_head
from antiphon_server.router.server import RouterServer
from antiphon_server.simulator.guest import serving

Message = dict[str, Any]
LINE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: router\r\n"
H2C = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
)
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n"
)


def asking(messages: list[Message], *, more: bytes = b"", **body: Any) -> bytes:
    """A request for a chat turn. ``more``: headers."""
    data = json.dumps({"model": "simulated", "messages": messages, **body}).encode()
    return LINE + more + b"Content-Length: %d\r\n\r\n" % len(data) + data


class Client:
    """One connection to a router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, rig: Any) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", rig.client.base_url.port))

    async def send(self, *parts: bytes) -> None:
        """Each part is a read of its own."""
        for part in parts:
            self._writer.write(part)
            await asyncio.sleep(0.02)

    async def reply(self) -> tuple[int, bytes]:
        """The next one's status and body."""
        async with asyncio.timeout(10):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            status = int(head.split(b" ")[1])
            if b"transfer-encoding: chunked" not in head:
                return status, await self.reader.readexactly(
                    int(head.split(b"content-length:")[1].split()[0])
                )
            body = b""
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readexactly(2)
            return status, body

    async def rest(self) -> bytes:
        """All that comes until the router closes."""
        async with asyncio.timeout(10):
            return await self.reader.read()

    def leave(self) -> None:
        self._writer.transport.abort()


@pytest.mark.parametrize(
    "wish", [H2C, WEBSOCKET, b"Upgrade: h2c\r\n" * 2 + H2C], ids=["h2c", "websocket", "many"]
)
@pytest.mark.parametrize("cut", [None, -10, "body", 60, 1], ids=str)
async def test_wish_for_another_protocol_is_ignored(
    start: Any, opening: list[Message], wish: bytes, cut: int | str | None
) -> None:
    rig = await start()
    client = await Client.to(rig)
    request = asking(opening, more=wish, max_tokens=2)
    at = request.index(b"\r\n\r\n") + 4 if cut == "body" else cut
    assert at is None or isinstance(at, int)
    await client.send(*([request] if at is None else [request[:at], request[at:]]))
    for count in (2, 3):
        status, body = await client.reply()
        assert status == 200, body
        assert json.loads(body)["usage"]["completion_tokens"] == count
        await client.send(*([asking(opening, max_tokens=3)] if count == 2 else []))
    client.leave()


async def test_wishes_in_requests_sent_ahead_are_ignored(start: Any, opening: list[Message]) -> None:
    rig = await start()
    client = await Client.to(rig)
    wishes = [H2C, b"", H2C, WEBSOCKET]
    await client.send(b"".join(asking(opening, more=w, max_tokens=n) for n, w in enumerate(wishes, 1)))
    counts = [json.loads((await client.reply())[1])["usage"]["completion_tokens"] for _ in wishes]
    assert counts == [1, 2, 3, 4]
    client.leave()


async def test_wish_without_a_body_is_answered(start: Any) -> None:
    rig = await start()
    client = await Client.to(rig)
    await client.send(b"GET /v1/realtime HTTP/1.1\r\nHost: router\r\n" + WEBSOCKET + b"\r\n")
    status, body = await client.reply()
    assert (status, json.loads(body)["error"]["code"]) == (404, 404)
    await client.send(b"GET /health HTTP/1.1\r\nHost: router\r\n" + H2C + b"\r\n")
    assert (await client.reply())[0] == 200
    client.leave()


def test_plain_head_keeps_everything_else() -> None:
    headers = [(b"host", b"r"), (b"upgrade", b"h2c"), (b"connection", b"Upgrade, close"), (b"x", b"")]
    head = plain_head(b"POST", b"/a?b", "1.0", headers)
    assert head == b"POST /a?b HTTP/1.0\r\nhost: r\r\nconnection: Upgrade, close\r\nx: \r\n\r\n"


UNREADABLE = [
    b"\x00\x01garbage\r\n\r\n",
    b"CONNECT engine:443 HTTP/1.1\r\nHost: engine\r\n\r\n\x16\x03",
    b"CONNECT engine:443 HTTP/1.1\r\nHost: engine\r\n" + H2C + b"\r\n",
    LINE + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    LINE + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
]


@pytest.mark.parametrize(
    "garbage", UNREADABLE, ids=["bytes", "proxy", "proxy's wish", "two lengths", "chunk"]
)
@pytest.mark.parametrize("before", [0, 1])
async def test_what_cannot_be_read_is_refused_as_everything_else_is(
    start: Any, settled: Any, garbage: bytes, before: int
) -> None:
    rig = await start()
    client = await Client.to(rig)
    for _ in range(before):
        await client.send(b"GET /health HTTP/1.1\r\nHost: router\r\n\r\n")
        assert (await client.reply())[0] == 200
    await client.send(garbage)
    head, _, body = (await client.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    await settled(lambda: rig.state.admission.in_flight == 0)
    client.leave()


async def test_garbage_ends_a_stream_and_is_not_answered_within_it(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 50.0})
    client = await Client.to(rig)
    await client.send(asking(opening, stream=True))
    assert (await client.reader.readline()).startswith(b"HTTP/1.1 200")
    await client.send(b"\x00\x01garbage\r\n\r\n")
    await settled(lambda: rig.decode[0].counters.aborted == 1)
    assert b"HTTP/1.1" not in await client.rest()
    client.leave()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("ahead", [1, 3])
async def test_client_that_leaves_with_requests_sent_ahead_is_noticed(
    start: Any,
    settled: Any,
    opening: list[Message],
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    ahead: int,
) -> None:
    rig = await start(prefill={"prefill_rate": 1e6 if stream else 20.0}, decode={"decode_rate": 20.0})
    client = await Client.to(rig)
    await client.send(asking(opening, stream=stream) * (1 + ahead))
    engine = rig.decode[0] if stream else rig.prefill[0]
    await settled(lambda: engine.running)
    if stream:
        await client.reader.readline()
    client.leave()
    await settled(lambda: engine.counters.aborted == 1)
    await settled(lambda: rig.state.admission.in_flight == 0)
    assert rig.count("antiphon_clients_gone_total", phase="stream" if stream else "prefill") == 1
    assert len(rig.legs(rig.prefill[0])) == 1
    assert "turn.crashed" not in caplog.text
    assert "Exception in ASGI application" not in caplog.text


async def test_nothing_of_a_connection_is_left_to_the_garbage_collector(
    start: Any, settled: Any, opening: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await start(prefill={"prefill_rate": 20.0})
    protocols: list[weakref.ref[BoundedProtocol]] = []
    made = BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        protocols.append(weakref.ref(self))
        made(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    gc.collect()
    gc.disable()
    try:
        client = await Client.to(rig)
        await client.send(asking(opening, more=H2C) * 3)
        await settled(lambda: rig.prefill[0].running)
        client.leave()
        await settled(lambda: len(protocols) == 1 and protocols[0]() is None)
    finally:
        gc.enable()


async def test_head_sent_ahead_has_its_time_once_nothing_is_served(
    start: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 20.0}, router={"head_timeout": 0.2})
    client = await Client.to(rig)
    request = asking(opening, stream=True, max_tokens=8)
    for whole in (1, 2):
        await client.send(request * whole + request[:30])
        for _ in range(whole):  # each takes more than the head's time
            assert (await client.reply())[1].endswith(b"[DONE]\n\n")
        await client.send(request[30:])
        assert (await client.reply())[1].endswith(b"[DONE]\n\n")
    await client.send(request[:30])
    assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
    client.leave()


class Flood:
    """An application that sends more than any connection holds. ``gone``: its client has left."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.gone = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = take_line(scope)
        assert line is not None
        line.watch(self.gone.set)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(self._size >> 20):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        line.let_go()


@asynccontextmanager
async def flooded(
    flood: Flood, **settings: Any
) -> AsyncIterator[tuple[socket.socket, type[BoundedProtocol]]]:
    """A connection with a small window that has asked for a flood."""
    protocol = protocol_within(RouterSettings(**settings))
    config = uvicorn.Config(flood, port=0, http=protocol, ws="none", log_config=None, lifespan="off")
    async with serving(config) as url:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", int(url.rpartition(":")[2])))
            await loop.sock_sendall(client, b"POST / HTTP/1.1\r\nHost: router\r\nContent-Length: 0\r\n\r\n")
            yield client, protocol


async def test_client_that_takes_nothing_has_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    flood = Flood(1 << 30)
    async with flooded(flood, idle_timeout=0.2):
        await asyncio.wait_for(flood.gone.wait(), 10)
    assert "client.stalled" in caplog.text


async def test_client_that_takes_little_at_a_time_is_waited_for() -> None:
    flood = Flood(16 << 20)
    loop = asyncio.get_running_loop()
    async with flooded(flood, idle_timeout=0.8) as (client, _):
        got, end = 0, loop.time() + 2
        while part := await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 10):
            got += len(part)
            if loop.time() < end:
                await asyncio.sleep(0.1)
            if part.endswith(b"\r\n0\r\n\r\n"):
                break
        assert got > 16 << 20
        assert not flood.gone.is_set()


async def test_bounds_that_change_hold_for_running_connections() -> None:
    flood = Flood(1 << 30)
    async with flooded(flood) as (client, protocol):
        loop = asyncio.get_running_loop()
        await loop.sock_recv(client, 1000)
        protocol.keep_to(RouterSettings(idle_timeout=0.2))
        for _ in range(200):
            await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 10)
        await asyncio.wait_for(flood.gone.wait(), 10)


async def test_reload_hands_bounds_to_the_connections(serve_app: Any) -> None:
    settings = RouterSettings(prefill=["http://127.0.0.1:1"], decode=["http://127.0.0.1:2"], calibrate=False)
    app = create_app(settings)
    protocol = protocol_within(settings)
    async with serve_app(app):
        config = uvicorn.Config(app, http=protocol, log_config=None)
        shorter = settings.model_copy(update={"idle_timeout": 7.0})
        server = RouterServer(config, app.state.router, lambda: Loaded(shorter, ()))
        assert protocol.idle_seconds == settings.idle_timeout
        await server._reloads.reload()
        assert protocol.idle_seconds == 7.0
