"""A decode engine that replays what a real one sent, chunk by chunk, when told to."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

STREAMS = Path(__file__).parent.parent / "router" / "streams"
NAMES = sorted(path.stem for path in STREAMS.glob("*.json"))
_BARE = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b"


@dataclass(frozen=True)
class Recording:
    """One reply of a real engine. ``whole``: its twin that is not a stream, if there is one."""

    name: str
    surface: str
    headers: dict[str, str]
    chunks: list[bytes]
    whole: bytes | None

    @property
    def data(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def events(self) -> list[bytes]:
        return [part + b"\n\n" for part in self.data.split(b"\n\n")[:-1]]

    def shown(self) -> list[bytes]:
        """What of each event a client may see."""
        return [shown_event(event) for event in self.events]


def recording(name: str) -> Recording:
    raw = json.loads((STREAMS / f"{name}.json").read_text())
    chunks = [chunk.encode() for chunk in raw["chunks"]]
    whole = raw["whole"].encode() if "whole" in raw else None
    return Recording(name, raw["surface"], raw["headers"], chunks, whole)


def shown_event(event: bytes) -> bytes:
    """The event without what belongs to engines, told by a parser that the router does not use."""
    head, data, payload = event.rpartition(b"data: ")
    if b"antiphon.handle" not in payload and b'"kv_transfer_params"' not in payload:
        return event
    parsed = json.loads(payload)
    if parsed.get("object") == "antiphon.handle":
        return b""
    return head + data + shown_whole(payload.strip()) + b"\n\n"


def shown_whole(data: bytes) -> bytes:
    parsed = json.loads(data)
    for place in (parsed, parsed.get("response")):
        if isinstance(place, dict):
            place.pop("kv_transfer_params", None)
            place.pop("ec_transfer_params", None)
    return json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass
class RecordedEngine:
    """``pieces``: chunks of HTTP that wait to be sent; None ends the reply. ``bodies``: what came."""

    recording: Recording
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    pieces: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()) not in {b"\r\n", b""}:
                    name, _, value = header.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                body = await reader.readexactly(length)
                await self._answer(line.split()[1].decode(), body, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if not path.startswith("/v1/"):
            status = 200 if path == "/health" else 404
            writer.write(_BARE % (status, 2, b"{}"))
            return
        asked = msgspec.json.decode(body)
        self.bodies.append(asked)
        if not asked.get("stream"):
            assert self.recording.whole is not None
            writer.write(_BARE % (200, len(self.recording.whole), self.recording.whole))
            return
        fields = {**self.recording.headers, "transfer-encoding": "chunked"}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode())
        while (piece := await self.pieces.get()) is not None:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def recorded_engine(what: Recording) -> AsyncIterator[RecordedEngine]:
    engine = RecordedEngine(what)
    connections: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(engine.serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
