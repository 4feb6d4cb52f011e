"""The simulator's counted time, with connections that never leave the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from antiphon_server.bench.simulate.loop import START, StuckError
from antiphon_server.bench.simulate.loop import VirtualLoop as CountedLoop
from doubles.memory_network import MemoryNetwork

__all__ = ["START", "StuckError", "VirtualLoop"]


class VirtualLoop(CountedLoop):
    """Its connections go through ``network``, never through sockets."""

    def __init__(self, network: MemoryNetwork) -> None:
        super().__init__()
        self._network = network

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect within the process.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        return self._network.connect(self, factory, (host, port))
