"""The least that a proxy can do, on the router's own server and client: pass bodies on, relay replies.

python -m antiphon_server.bench.overhead.passthrough PORT UPSTREAM
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.types import Receive, Scope, Send

from antiphon_server.router.upstream.upstream import Origin, Timeouts, Upstream

_LIMIT_S = 60.0
_DROPPED = frozenset({b"transfer-encoding", b"connection", b"date", b"server"})


class PassThrough:
    """An ASGI app over one upstream."""

    def __init__(self, url: str) -> None:
        self._origin = Origin.parse(url)
        self._upstream = Upstream(Timeouts(_LIMIT_S, _LIMIT_S, _LIMIT_S))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        response = await self._upstream.send(
            self._origin,
            scope["method"],
            scope["path"],
            headers=(("Content-Type", "application/json"),),
            body=parts[0] if len(parts) == 1 else b"".join(parts),
        )
        headers = [(name, value) for name, value in response.headers if name not in _DROPPED]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        while (chunk := await response.chunk()) is not None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


if __name__ == "__main__":
    uvicorn.run(
        PassThrough(sys.argv[2]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
        backlog=4096,
    )
