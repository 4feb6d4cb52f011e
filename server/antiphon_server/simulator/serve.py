"""A simulated engine on a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from antiphon_server.simulator.app import app
from antiphon_server.simulator.engine import SimulatedEngine
from antiphon_server.simulator.faults import CONNECTION


class _Protocol(HttpToolsProtocol):
    """Lets faults end the connection that a request came in by."""

    def data_received(self, data: bytes) -> None:
        CONNECTION.set(self.transport)
        super().data_received(data)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The engine is a guest in somebody else's process.
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def serve(
    engine: SimulatedEngine, *, host: str = "127.0.0.1", port: int = 0, keep_alive: int = 5
) -> AsyncIterator[str]:
    """Serve the engine and yield its base URL. ``keep_alive``: seconds, five as in vLLM.

    Leaving the block kills the engine: requests in flight lose their connection, nobody listens any more.
    """
    listener = socket.create_server((host, port))
    config = uvicorn.Config(
        app(engine),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    engine.resume()
    task = asyncio.create_task(server.serve(sockets=[listener]))
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        ready.cancel()
        engine.halt()
        engine.faults.clear()
        server.should_exit = True
        await task
        listener.close()
