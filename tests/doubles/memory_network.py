"""Connections within a process: the protocols of real ones, without their sockets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from errno import ECONNREFUSED
from typing import Any

Address = tuple[str, int]
Factory = Callable[[], asyncio.Protocol]

_HIGH_WATER = 16 * 1024


class MemoryTransport(asyncio.Transport):
    """One end. ``written``: bytes handed to it; ``delivered``: bytes that its protocol was given.
    ``crossed``: it was closed in the instant in which something came, which nobody may have looked at."""

    peer: MemoryTransport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, network: MemoryNetwork, info: Mapping[str, Any]
    ) -> None:
        super().__init__(info)
        self._loop = loop
        self._network = network
        self._protocol: asyncio.Protocol
        self._inbox = bytearray()
        self._ended = False
        self._due = False
        self._reading = True
        self._blocked = False
        self._closing = False
        self._lost = False
        self.written = 0
        self.delivered = 0
        self._delivered_at = -1.0
        self.crossed = False

    def begin(self, protocol: asyncio.Protocol, peer: MemoryTransport) -> None:
        """Connect the two ends."""
        self._protocol, self.peer = protocol, peer

    def made(self) -> None:
        """Tell the protocol."""
        self._protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)
        if self._closing or not data:
            return
        self.peer._arrive(bytes(data))
        if len(self.peer._inbox) > _HIGH_WATER and not self._blocked:
            self._blocked = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.crossed = self._delivered_at == self._loop.time()
            self._loop.call_soon(self._lose, None)
            self.peer._end()

    def abort(self) -> None:
        """End both sides at once; what is under way is lost."""
        if self._closing:
            return
        self._closing = True
        self.crossed = self._delivered_at == self._loop.time()
        self._loop.call_soon(self._lose, None)
        self.peer._closing = True
        self._loop.call_soon(self.peer._lose, ConnectionResetError("connection reset"))

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule()

    def _arrive(self, data: bytes) -> None:
        self._inbox += data
        self._schedule()

    def _end(self) -> None:
        self._ended = True
        self._schedule()

    def _schedule(self) -> None:
        if not self._due and not self._closing:
            self._due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._due = False
        if self._closing or not self._reading:
            return
        if self._inbox:
            size = self._network.portion(len(self._inbox))
            data = bytes(self._inbox[:size])
            del self._inbox[:size]
            self.delivered += size
            self._delivered_at = self._loop.time()
            self._protocol.data_received(data)
            if self.peer._blocked and len(self._inbox) <= _HIGH_WATER // 4:
                self.peer._blocked = False
                self.peer._protocol.resume_writing()
        if self._inbox:
            self._schedule()
        elif self._ended and not self._closing:
            self._protocol.eof_received()
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._inbox.clear()
            self._protocol.connection_lost(error)


class MemoryNetwork:
    """Who listens where. With ``source`` bytes arrive in portions of any size, as on a network."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source
        self._listeners: dict[Address, Factory] = {}
        self._open: dict[Address, list[MemoryTransport]] = {}

    def listen(self, address: Address, factory: Factory) -> None:
        """Accept connections from now on."""
        self._listeners[address] = factory

    def close(self, address: Address) -> None:
        """As when a process ends: its connections break, and new ones are refused."""
        self._listeners.pop(address, None)
        for transport in self._open.pop(address, []):
            transport.abort()

    def portion(self, size: int) -> int:
        """How many of so many bytes arrive at once."""
        if self._source is None or self._source.random() < 0.8:
            return size
        return self._source.randint(1, size)

    def connect(
        self, loop: asyncio.AbstractEventLoop, factory: Factory, address: Address
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to who listens there.

        Raises:
            ConnectionRefusedError: nobody.
        """
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(ECONNREFUSED, f"Connect call failed {address[0]}:{address[1]}")
        client, server = ("10.0.0.1", 40000), address
        near = MemoryTransport(loop, self, {"sockname": client, "peername": server})
        far = MemoryTransport(loop, self, {"sockname": server, "peername": client})
        near.begin(factory(), far)
        far.begin(listener(), near)
        kept = [t for t in self._open.get(address, ()) if not t.is_closing()]
        self._open[address] = [*kept, far]
        far.made()
        near.made()
        return near, near._protocol
