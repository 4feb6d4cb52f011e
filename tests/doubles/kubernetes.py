"""A double of Kubernetes' API server: EndpointSlices, listed and watched over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Slice = dict[str, Any]


def endpoint_slice(
    name: str, endpoints: dict[str, dict[str, bool]], *, labels: dict[str, str], port: int, version: int = 0
) -> Slice:
    """``endpoints``: conditions by address."""
    return {
        "metadata": {"name": name, "labels": labels, "resourceVersion": str(version)},
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": 9}, {"name": "http", "port": port}],
        "endpoints": [
            {"addresses": [address], "conditions": conditions} for address, conditions in endpoints.items()
        ],
    }


class ApiServer:
    """``requests``: their targets and headers. ``forgotten``: versions below are 410 Gone for a watch.
    ``refuse``: status of every answer, if not None."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.forgotten = 0
        self.refuse: int | None = None
        self.url = ""
        self.lists = 0
        self._version = 1
        self._slices: dict[str, Slice] = {}
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._watches: dict[asyncio.StreamWriter, str] = {}

    @property
    def watching(self) -> int:
        """Watches that are open."""
        return len(self._watches)

    def put(self, item: Slice) -> None:
        """Add or change a slice."""
        name = item["metadata"]["name"]
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = item
        self._tell(kind, item)

    def delete(self, name: str) -> None:
        """Remove a slice."""
        self._tell("DELETED", self._slices.pop(name))

    def forget(self, item: Slice | None = None) -> None:
        """Compact: every watch gets 410 Gone. ``item``: a change that only a new list shows."""
        if item is not None:
            self._version += 1
            self._slices[item["metadata"]["name"]] = item
        self.forgotten = self._version + 1
        self._version += 1
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        for writer in list(self._watches):
            self._send(writer, {"type": "ERROR", "object": status})

    def bookmark(self) -> int:
        """Tell every watch the present version."""
        for writer in self._watches:
            item = {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(self._version)}}
            self._send(writer, {"type": "BOOKMARK", "object": item})
        return self._version

    def cut(self) -> None:
        """Break every watch's connection in the middle of a line."""
        for writer in list(self._watches):
            writer.write(b'20\r\n{"type": "ADD')
            writer.transport.abort()
        self._watches.clear()

    def end(self) -> None:
        """End every watch as the server does after its time."""
        for writer in list(self._watches):
            writer.write(b"0\r\n\r\n")
            writer.close()
        self._watches.clear()

    def _tell(self, kind: str, item: Slice) -> None:
        self._version += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        event = {"type": kind, "object": item}
        self._history.append((self._version, event))
        for writer, selector in self._watches.items():
            if _selected(item, selector):
                self._send(writer, event)

    @staticmethod
    def _send(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        middle = len(line) // 2  # a line may come in several chunks
        for part in (line[:middle], line[middle:]):
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._watches.pop(writer, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in head[1:] if line)}
        target = head[0].split(" ")[1]
        self.requests.append((target, headers))
        query = _query(target)
        if self.refuse is not None:
            self._whole(writer, self.refuse, {"message": "forbidden: no such role"})
        elif query.get("watch") != "1":
            self.lists += 1
            items = [s for s in self._slices.values() if _selected(s, query["labelSelector"])]
            body = {"metadata": {"resourceVersion": str(self._version)}, "items": items}
            self._whole(writer, 200, body)
        elif int(query["resourceVersion"]) < self.forgotten:
            self._whole(writer, 410, {"kind": "Status", "code": 410})
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            for version, event in self._history:
                if version > int(query["resourceVersion"]) and _selected(
                    event["object"], query["labelSelector"]
                ):
                    self._send(writer, event)
            self._watches[writer] = query["labelSelector"]
            await reader.read()
            return False
        return True

    @staticmethod
    def _whole(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content))


def _query(target: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(target).query))


def _selected(item: Slice, selector: str) -> bool:
    wanted = dict(part.split("=") for part in selector.split(","))
    return bool(wanted.items() <= item["metadata"]["labels"].items())


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """Serve one on a free port."""
    api = ApiServer()
    server = await asyncio.start_server(api._serve, "127.0.0.1", 0)
    api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        server.close()
        for writer in list(api._watches):
            writer.transport.abort()
        await server.wait_closed()
