"""An event loop whose time is only counted: it jumps to the next timer as soon as nothing else is left to do.

Hours of timeouts, leases and probes pass in milliseconds, and what happens is the same in every run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from doubles.memory_network import MemoryNetwork

START = 1000.0


class StuckError(AssertionError):
    """Somebody waits for what will never come: no timer runs and nothing is on its way."""


class _Jump(selectors.SelectSelector):
    """Waits for nothing: whatever there is to wait for happens in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("nothing is left that could happen")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its connections go through ``network``, never through sockets."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._network = network

    def time(self) -> float:
        """Seconds from a start that is the same for all loops."""
        return self._jump.now

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect within the process.

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        return self._network.connect(self, factory, (host, port))
