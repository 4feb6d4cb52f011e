"""The least that a proxy can do: pass a body on, or make it a prefill and a decode leg; relay the reply.

Servers, clients and JSON libraries are changed here one at a time, to see what each costs. For a process of
its own, also in an environment that has the libraries and not what else this package needs:

    python -m antiphon_server.bench.overhead.proxy PORT DECODE [PREFILL] [SERVER CLIENT JSON]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Headers = list[tuple[bytes, bytes]]
_HOST = "127.0.0.1"
_LIMIT_S = 60.0
_DROPPED = frozenset({b"transfer-encoding", b"connection", b"date", b"server", b"content-length"})
_TYPE = ("Content-Type", "application/json")
_ANSWER_ONLY = frozenset({"stream", "max_tokens"})
_COLD = {"do_remote_decode": True, "do_remote_prefill": False}
_VARIABLE = "OVERHEAD_PROXY"


@dataclass(frozen=True, slots=True)
class Pieces:
    """``prefill``: URL, empty for a proxy that only passes on. ``server``: uvicorn or granian. ``client``:
    own, aiohttp or httpx. ``json``: raw (one level deep, values stay bytes), orjson or stdlib."""

    decode: str
    prefill: str = ""
    server: str = "uvicorn"
    client: str = "own"
    json: str = "raw"


@dataclass(frozen=True, slots=True)
class Reply:
    """Of a leg. ``chunks``: of its body, as they come."""

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """All of it."""
        return b"".join([chunk async for chunk in self.chunks])


Post = Callable[[str, str, bytes], AbstractAsyncContextManager[Reply]]
"""Send a body to a URL's path."""


def own() -> Post:
    """The router's own client."""
    from antiphon_server.router.upstream.upstream import Origin, Response, Timeouts, Upstream

    upstream = Upstream(Timeouts(_LIMIT_S, _LIMIT_S, _LIMIT_S))
    origins: dict[str, Origin] = {}

    async def chunks(response: Response) -> AsyncIterator[bytes]:
        while (chunk := await response.chunk()) is not None:
            yield chunk

    @asynccontextmanager
    async def post(url: str, path: str, body: bytes) -> AsyncIterator[Reply]:
        origin = origins.get(url) or origins.setdefault(url, Origin.parse(url))
        response = await upstream.send(origin, "POST", path, headers=(_TYPE,), body=body)
        try:
            yield Reply(response.status, response.headers, chunks(response))
        finally:
            response.close()

    return post


def by_aiohttp() -> Post:
    """aiohttp, with as many connections as it likes."""
    import aiohttp

    session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def post(url: str, path: str, body: bytes) -> AsyncIterator[Reply]:
        nonlocal session
        if session is None:
            session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        async with session.post(url + path, data=body, headers=dict((_TYPE,))) as reply:
            headers = [(name.lower(), value) for name, value in reply.raw_headers]
            yield Reply(reply.status, headers, reply.content.iter_any())

    return post


def by_httpx() -> Post:
    """httpx, with as many connections as it likes."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    http = httpx.AsyncClient(limits=limits, timeout=_LIMIT_S, trust_env=False)

    @asynccontextmanager
    async def post(url: str, path: str, body: bytes) -> AsyncIterator[Reply]:
        async with http.stream("POST", url + path, content=body, headers=dict((_TYPE,))) as reply:
            headers = [(name.lower(), value) for name, value in reply.headers.raw]
            yield Reply(reply.status_code, headers, reply.aiter_raw())

    return post


def raw_json() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    """One level deep: what is not looked at stays bytes."""
    import msgspec

    return msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, msgspec.json.Encoder().encode


def by_orjson() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    """The whole body as objects, fast."""
    import orjson

    return orjson.loads, orjson.dumps


def by_stdlib() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    """The whole body as objects."""
    return json.loads, lambda value: json.dumps(value, separators=(",", ":")).encode()


CLIENTS: dict[str, Callable[[], Post]] = {"own": own, "aiohttp": by_aiohttp, "httpx": by_httpx}
JSONS = {"raw": raw_json, "orjson": by_orjson, "stdlib": by_stdlib}


class Proxy:
    """An ASGI app."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._post = CLIENTS[pieces.client]()
        self._decode, self._encode = JSONS[pieces.json]()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await _answer(send, 200, [(b"content-type", b"application/json")], b"{}")
            return
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._pieces.prefill:
            body = await self._prefilled(scope["path"], body)
        async with self._post(self._pieces.decode, scope["path"], body) as reply:
            headers = [pair for pair in reply.headers if pair[0] not in _DROPPED]
            if dict(headers).get(b"content-type") == b"application/json":
                await _answer(send, reply.status, headers, await reply.read())
                return
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
            async for chunk in reply.chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _prefilled(self, path: str, body: bytes) -> bytes:
        """The decode leg's body, after the prefill leg."""
        asked = self._decode(body)
        leg = {name: value for name, value in asked.items() if name not in _ANSWER_ONLY}
        leg |= {"max_tokens": 1, "kv_transfer_params": _COLD}
        async with self._post(self._pieces.prefill, path, self._encode(leg)) as reply:
            filled = self._decode(await reply.read())
        return self._encode({**asked, "kv_transfer_params": filled["kv_transfer_params"]})


async def _answer(
    send: Callable[[Message], Awaitable[None]], status: int, headers: Headers, body: bytes
) -> None:
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def create() -> Proxy:
    """The app of the process whose environment describes it: servers make it in processes of their own."""
    return Proxy(Pieces(**json.loads(os.environ[_VARIABLE])))


def main(port: int, pieces: Pieces) -> None:
    """Serve until told to stop."""
    import dataclasses

    os.environ[_VARIABLE] = json.dumps(dataclasses.asdict(pieces))
    app = "antiphon_server.bench.overhead.proxy:create"
    if pieces.server == "granian":
        from granian import Granian
        from granian.constants import Interfaces, Loops

        Granian(
            app, _HOST, port, interface=Interfaces.ASGINL, loop=Loops.uvloop, factory=True, log_enabled=False
        ).serve()
        return
    import uvicorn

    uvicorn.run(
        app,
        factory=True,
        host=_HOST,
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
        backlog=4096,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Pieces(*sys.argv[2:]))
