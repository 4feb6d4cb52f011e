"""A simulated engine on a real socket."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from antiphon_server.simulator.app import app
from antiphon_server.simulator.engine import SimulatedEngine
from antiphon_server.simulator.faults import CONNECTION
from antiphon_server.simulator.guest import serving


class _Protocol(HttpToolsProtocol):
    """Lets faults end the connection that a request came in by."""

    def data_received(self, data: bytes) -> None:
        CONNECTION.set(self.transport)
        super().data_received(data)


@asynccontextmanager
async def serve(
    engine: SimulatedEngine, *, host: str = "127.0.0.1", port: int = 0, keep_alive: int = 5
) -> AsyncIterator[str]:
    """Serve the engine and yield its base URL. ``keep_alive``: seconds, five as in vLLM.

    Leaving the block kills the engine: requests in flight lose their connection, nobody listens any more.
    """
    config = uvicorn.Config(
        app(engine),
        host=host,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=1,
    )
    with socket.create_server((host, port)) as listener:
        engine.resume()
        async with serving(config, [listener]) as url:
            try:
                yield url
            finally:
                engine.halt()
                engine.faults.clear()
