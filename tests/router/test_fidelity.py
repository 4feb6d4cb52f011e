"""Streams of real engines, replayed through the router: every chunk arrives at once, and equal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import httpx
import pytest

from antiphon_server.router.app import create_app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.legs import FORMS
from antiphon_server.router.state import State
from rig.recorded import NAMES, RecordedEngine, Recording, recorded_engine, recording, shown_whole

PATIENCE = 10.0
OPENING = {"chat": 1, "completions": 0, "responses": 2, "messages": 1}
"""Events that only say that the request was taken: the router holds them until the next one."""
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
}
KINDS = {
    "chat": b'"delta":{"content":"',
    "completions": b'"text":"',
    "responses": b"event: response.output_text.delta",
    "messages": b'"type":"text_delta"',
}


@pytest.fixture
async def router(serve_app: Any) -> AsyncIterator[Callable[[str], Any]]:
    """A router over one prefill engine that is down and a decode engine that replays."""
    async with AsyncExitStack() as stack:

        async def start(name: str) -> tuple[RecordedEngine, str]:
            engine = await stack.enter_async_context(recorded_engine(recording(name)))
            settings = RouterSettings(prefill=["http://127.0.0.1:9"], decode=[engine.url])
            app = create_app(settings)
            url = await stack.enter_async_context(serve_app(app))
            state = cast("State", app.state.router)
            while not state.workers.decode[0].healthy:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return engine, url

        yield start


class Client:
    """Reads a stream off the socket, piece by piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.body = b""
        self.ended = False

    async def head(self) -> str:
        async with asyncio.timeout(PATIENCE):
            return (await self._reader.readuntil(b"\r\n\r\n")).decode()

    async def until(self, length: int) -> None:
        """Read until so many bytes of the body have come, or its end."""
        async with asyncio.timeout(PATIENCE):
            while len(self.body) < length and not self.ended:
                size = int(await self._reader.readline(), 16)
                self.body += (await self._reader.readexactly(size + 2))[:-2]
                self.ended = size == 0

    async def end(self) -> None:
        await self.until(len(self.body) + 10**9)


@asynccontextmanager
async def posted(url: str, surface: str) -> AsyncIterator[Client]:
    form = FORMS[cast("Any", surface)]
    body = httpx.Request("POST", url, json={**BODIES[surface], "model": "m", "stream": True}).content
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {form.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def as_recorded(what: Recording) -> list[bytes]:
    return what.chunks


def by_event(what: Recording) -> list[bytes]:
    return what.events


def by_byte(what: Recording) -> list[bytes]:
    return [bytes((byte,)) for byte in what.data]


def across_events(what: Recording) -> list[bytes]:
    """Pieces that begin and end inside of events."""
    return [what.data[start : start + 700] for start in range(0, len(what.data), 700)]


def due(what: Recording, sent: int) -> int:
    """Bytes that a client must have once so many have come from decode."""
    came, shown = 0, 0
    for number, (event, part) in enumerate(zip(what.events, what.shown(), strict=True)):
        came += len(event)
        if came > sent:
            # What opens a stream waits for the next event, of which any whole one will do.
            return shown if number > OPENING[what.surface] else 0
        shown += len(part)
    return shown


SPLITS = [
    *((name, split) for name in NAMES for split in (as_recorded, by_event, across_events)),
    # Thousands of chunks each: one recording a surface.
    *((name, by_byte) for name in ("chat-text", "completions-text", "responses-tool", "messages-tool")),
]


@pytest.mark.parametrize(("name", "split"), SPLITS)
async def test_every_chunk_arrives_at_once_and_equal(
    router: Any, name: str, split: Callable[[Recording], list[bytes]]
) -> None:
    engine, url = await router(name)
    what: Recording = engine.recording
    async with posted(url, what.surface) as client:
        sent, headed = 0, False
        for piece in split(what):
            engine.pieces.put_nowait(piece)
            sent += len(piece)
            wanted = due(what, sent)
            if wanted <= len(client.body):
                continue
            if not headed:
                head, headed = await client.head(), True
                assert head.startswith("HTTP/1.1 200")
                assert "text/event-stream" in head
            # Nothing more comes from decode until this is there: what was held back would never arrive.
            await client.until(wanted)
            assert len(client.body) == wanted
        engine.pieces.put_nowait(None)
        await client.end()
    assert client.body == b"".join(what.shown())
    assert b"kv_transfer_params" not in client.body
    assert b"antiphon" not in client.body


@pytest.mark.parametrize("name", [name for name in NAMES if recording(name).whole is not None])
async def test_whole_replies_are_equal_but_for_the_handle(router: Any, name: str) -> None:
    engine, url = await router(name)
    what: Recording = engine.recording
    assert what.whole is not None
    path = FORMS[cast("Any", what.surface)].path
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        reply = await http.post(url + path, json={**BODIES[what.surface], "model": "m"})
    assert reply.status_code == 200
    assert b"kv_transfer_params" in what.whole
    assert reply.content == shown_whole(what.whole)


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_worth_replaying(name: str) -> None:
    what = recording(name)
    kinds = {"text": KINDS[what.surface], "thought": b"reasoning", "tool": b"look"}
    wanted = kinds[name.partition("-")[2]]
    assert wanted in what.data or b"thinking_delta" in what.data
    assert b'"remote_block_ids"' in what.data
    assert b'"remote_block_ids"' not in b"".join(what.shown())
