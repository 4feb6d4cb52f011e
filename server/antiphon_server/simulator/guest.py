"""A uvicorn server in somebody else's event loop, which starts and ends at a word."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import uvicorn

_TICK = 1.0
"""Seconds between renewals of the Date header."""
_POLL = 0.005


class Guest(uvicorn.Server):
    """Leaves signals to its host, and does not wait a tenth of a second wherever it waits."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._ending = asyncio.Event()

    @property
    def url(self) -> str:
        """Once it listens."""
        return f"http://{self.config.host}:{self.servers[0].sockets[0].getsockname()[1]}"

    def end(self) -> None:
        """Listen no more; whoever is being served has ``timeout_graceful_shutdown`` seconds left."""
        self.should_exit = True
        self._ending.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.ready.set()
        while not await self.on_tick(0):  # uvicorn renews the header at every tenth, from 0 on
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _TICK)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for sock in sockets or ():
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def serving(config: uvicorn.Config, sockets: list[socket.socket] | None = None) -> AsyncIterator[str]:
    """Serve until the block ends; yields the base URL. ``sockets``: listen on these instead of
    the configuration's port, and close them at the end.

    :raises RuntimeError: the server cannot start.
    """
    server = Guest(config)
    task = asyncio.create_task(_served(server, sockets))
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield server.url
    finally:
        ready.cancel()
        server.end()
        await task


async def _served(server: Guest, sockets: list[socket.socket] | None) -> None:
    try:
        await server.serve(sockets)
    except SystemExit:  # which would end the host's loop
        raise RuntimeError(
            "the server cannot start: see what uvicorn.error logged; free its port or mend the application"
        ) from None
