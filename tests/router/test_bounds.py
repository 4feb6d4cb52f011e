"""Requests that are too large, too slow or not what they should be, and ids however they are written."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.gate.bounds import protocol_within
from antiphon_server.simulator.guest import serving

Message = dict[str, Any]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CHAT = "/v1/chat/completions"
HEAD = b"POST / HTTP/1.1\r\nHost: router\r\n"


class Listener:
    """A server with the router's protocol; ``asked``: bodies its application has got, and ``parts``: lengths
    of what each came in. ``slow``: turns of the event loop before it reads them."""

    def __init__(self, **settings: Any) -> None:
        self.asked: list[bytes] = []
        self.parts: list[list[int]] = []
        self.slow = 0
        app = Starlette(routes=[Route("/", self._answer, methods=["POST"])])
        protocol = protocol_within(RouterSettings(**settings))
        self.config = uvicorn.Config(app, port=0, http=protocol, ws="none", log_config=None, lifespan="off")
        self.url = httpx.URL()

    async def _answer(self, request: Request) -> Response:
        for _ in range(self.slow):
            await asyncio.sleep(0)
        parts = [part async for part in request.stream() if part]
        self.asked.append(b"".join(parts))
        self.parts.append(list(map(len, parts)))
        return PlainTextResponse("fine")

    async def connect(self) -> Connection:
        return await asyncio.open_connection(self.url.host, self.url.port)


@pytest.fixture
async def listen() -> AsyncIterator[Any]:
    """Start a :class:`Listener`."""
    async with AsyncExitStack() as ends:

        async def listen(**settings: Any) -> Listener:
            listener = Listener(**settings)
            listener.url = httpx.URL(await ends.enter_async_context(serving(listener.config)))
            return listener

        yield listen


async def send(writer: asyncio.StreamWriter, data: bytes, piece: int = 1000) -> None:
    """In pieces, until the server no longer takes them."""
    try:
        for start in range(0, len(data), piece):
            writer.write(data[start : start + piece])
            await writer.drain()
            await asyncio.sleep(0)
    except ConnectionError:
        pass


async def answer(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the server closes."""
    got = b""
    try:
        while data := await asyncio.wait_for(reader.read(65536), 10):
            got += data
    except ConnectionError:
        pass
    return got


@pytest.mark.parametrize(
    "endless",
    [
        HEAD + b"X-Long: " + b"x" * 400_000,
        HEAD + b"X: y\r\n" * 70_000,
        b"POST /" + b"x" * 400_000,
    ],
    ids=["one header", "many headers", "path"],
)
async def test_head_is_bounded_while_it_arrives(listen: Any, endless: bytes) -> None:
    listener = await listen(max_header_bytes=20_000, max_path=1000)
    reader, writer = await listener.connect()
    await send(writer, endless)
    got = await answer(reader)
    assert got.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in got
    assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == 431
    assert not listener.asked
    writer.close()


@pytest.mark.parametrize("padding", [b"0\r\nX: " + b"x" * 400_000, b"0\r\n" + b"X: y\r\n" * 70_000])
async def test_trailers_are_bounded(listen: Any, padding: bytes) -> None:
    listener = await listen(max_header_bytes=20_000, max_path=1000)
    reader, writer = await listener.connect()
    await send(writer, HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n" + padding)
    await answer(reader)
    assert not listener.asked
    writer.close()


async def test_large_bodies_and_many_requests_on_one_connection_are_no_head(listen: Any) -> None:
    listener = await listen(max_header_bytes=2000, max_path=1000)
    reader, writer = await listener.connect()
    body = b"x" * 100_000
    chunked = b"".join(b"%x\r\n%s\r\n" % (1000, body[:1000]) for _ in range(100)) + b"0\r\n\r\n"
    for _ in range(3):
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        request += HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked
        await send(writer, request, piece=1700)
        for _ in range(2):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(4) == b"fine"
    assert listener.asked == [body] * 6
    writer.close()


@pytest.mark.parametrize(("size", "most"), [(480_000, 480_000), (5_000_000, 1_400_000)])
async def test_body_comes_in_one_part_unless_it_is_very_large(listen: Any, size: int, most: int) -> None:
    listener = await listen()
    reader, writer = await listener.connect()
    listener.slow = 1000
    body = bytes(range(250)) * (size // 250)
    await send(writer, HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size + body, 30_000)
    assert (await answer(reader)).endswith(b"fine")
    assert listener.asked == [body]
    [parts] = listener.parts
    assert max(parts) <= most
    assert len(parts) <= 1 + size // 1_000_000
    writer.close()


async def test_head_that_trickles_is_given_up(listen: Any) -> None:
    listener = await listen(head_timeout=0.2)
    reader, writer = await listener.connect()
    writer.write(HEAD)
    assert (await answer(reader)).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_connection_without_a_request_is_closed_silently(listen: Any) -> None:
    listener = await listen(head_timeout=0.2)
    reader, writer = await listener.connect()
    assert await answer(reader) == b""
    writer.close()


async def test_idle_time_between_requests_is_not_a_slow_head(listen: Any) -> None:
    listener = await listen(head_timeout=0.2)
    reader, writer = await listener.connect()
    for _ in range(2):
        writer.write(HEAD + b"Content-Length: 1\r\n\r\nx")
        assert (await asyncio.wait_for(reader.readuntil(b"fine"), 10)).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(0.4)
    writer.close()


async def test_too_many_or_too_large_headers(start: Any, opening: list[Message]) -> None:
    rig = await start(router={"max_headers": 20, "max_header_bytes": 2000})
    body = {"model": "simulated", "messages": opening}
    many = {f"x-{number}": "y" for number in range(30)}
    for headers in (many, {"x-long": "y" * 3000}):
        reply = await rig.client.post(CHAT, json=body, headers=headers)
        assert reply.status_code == 431
        assert reply.json()["error"]["type"] == "invalid_request_error"
    assert not rig.legs(rig.prefill[0])


async def test_too_long_path(start: Any) -> None:
    rig = await start(router={"max_path": 200})
    for path in ("/v1/conversations/" + "c" * 300, "/v1/models?" + "q" * 300):
        assert (await rig.client.get(path)).status_code == 414
    assert (await rig.client.get("/v1/models?" + "q" * 100)).status_code == 200


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_too_large_body_declared_or_not(start: Any, settled: Any) -> None:
    rig = await start(router={"max_body": 1000})
    for path in (CHAT, "/v1/messages", "/tokenize"):
        for content in (b"x" * 2000, chunks(b"x" * 600, b"x" * 600)):
            reply = await rig.client.post(path, content=content)
            assert reply.status_code == 413, path
    await settled(lambda: rig.state.admission.in_flight == 0)
    assert not rig.legs(rig.prefill[0])


async def test_body_that_trickles_is_given_up_and_its_place_is_free(start: Any, settled: Any) -> None:
    rig = await start(router={"body_timeout": 0.2, "max_turns": 1})
    for path in (CHAT, "/tokenize"):
        reader, writer = await asyncio.open_connection(rig.client.base_url.host, rig.client.base_url.port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: router\r\nContent-Length: 100\r\n\r\n{{".encode())
        head, _, body = (await answer(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in head
        assert json.loads(body)["error"]["type"] == "request_timeout"
        writer.close()
    await settled(lambda: rig.state.admission.in_flight == 0)


async def test_compressed_body_is_refused(start: Any, opening: list[Message]) -> None:
    rig = await start()
    content = json.dumps({"model": "simulated", "messages": opening}).encode()
    packed = gzip.compress(content)
    for path in (CHAT, "/tokenize"):
        reply = await rig.client.post(path, content=packed, headers={"content-encoding": "gzip"})
        assert reply.status_code == 415
    reply = await rig.client.post(CHAT, content=content, headers={"content-encoding": "identity"})
    assert reply.status_code == 200


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"a": ' + b"[" * 100_000, b'{"model": "\xff"}']
)
async def test_body_that_is_no_json_object_is_refused(start: Any, content: bytes) -> None:
    rig = await start()
    reply = await rig.client.post(CHAT, content=content)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] in {"invalid_request_error", "BadRequestError"}
    assert rig.state.admission.in_flight == 0


IDS = [
    "line\nbreak",
    "\n",
    "ends\n",
    "zwölf",
    "会话 7",
    "a/b",
    "a%2Fb",
    "with space",
    "q?x=1#y",
    "😀",
    "x" * 500,
]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/conversations/c", "/v1/conversations/c"),
        ("/v1/nonsense", None),
        ("/", None),
    ],
)
async def test_a_wrong_base_url_is_told_what_is_served(start: Any, path: str, meant: str | None) -> None:
    rig = await start()
    told = await rig.client.post(path, json={})
    assert told.status_code == 404
    ending = f"not served here, but {meant} is: mend the base URL" if meant else "not served here"
    assert told.json()["error"]["message"].endswith(ending)


@pytest.mark.parametrize("name", IDS)
async def test_id_in_a_body_is_the_same_in_a_path(start: Any, opening: list[Message], name: str) -> None:
    rig = await start()
    await rig.ask(opening, conversation=name)
    path = "/v1/conversations/" + quote(name, safe="")
    described = await rig.client.get(path)
    assert described.status_code == 200
    assert (await rig.client.get(path + "x")).status_code == 404
    assert (await rig.client.delete(path)).status_code == 204
    assert (await rig.client.get(path)).status_code == 404


@pytest.mark.parametrize("name", ["zwölf", "会话 7", "😀", "plain"])
async def test_id_in_a_header_is_the_same_in_a_body(start: Any, opening: list[Message], name: str) -> None:
    rig = await start()
    first = await rig.ask(opening, headers={b"x-session-id": name.encode()})
    follow: Message = {"role": "user", "content": "And the next ones?"}
    second = await rig.ask([*opening, first.message, follow], conversation=name)
    assert second.path != "cold"
    assert (await rig.client.get("/v1/conversations/" + quote(name, safe=""))).status_code == 200


async def test_header_in_latin_1_is_read_as_such(start: Any, opening: list[Message]) -> None:
    rig = await start()
    await rig.ask(opening, headers={b"x-session-id": "zwölf".encode("latin-1")})
    assert (await rig.client.get("/v1/conversations/" + quote("zwölf"))).status_code == 200


async def test_ids_that_are_no_utf_8_stay_apart(start: Any, opening: list[Message]) -> None:
    rig = await start()
    await rig.ask(opening, headers={b"x-session-id": b"c\xff"})
    assert (await rig.client.get("/v1/conversations/c%FF")).status_code == 200
    assert (await rig.client.get("/v1/conversations/c%FE")).status_code == 404
