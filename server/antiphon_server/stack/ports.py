"""Which port each process listens on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from antiphon_server.stack.settings import StackSettings

PREFILL_BASE = 8100
DECODE_BASE = 8200
SIDE_CHANNEL_BASE = 5600
SEARCH = 500
"""How many ports behind the wanted one are tried."""


class PortError(OSError):
    """No free port where one was looked for."""


@dataclass(frozen=True, slots=True)
class EnginePorts:
    """``side_channel``: the first of one port per data-parallel rank, where NIXL agents meet."""

    http: int
    side_channel: int


@dataclass(frozen=True, slots=True)
class Ports:
    router: int
    prefill: tuple[EnginePorts, ...]
    decode: tuple[EnginePorts, ...]


Free = Callable[[int], bool]


def free(port: int, host: str = "127.0.0.1") -> bool:
    """True when nothing listens on the port, neither on ``host`` nor on all addresses."""
    return all(bindable(port, address) for address in {host, "0.0.0.0"})


def bindable(port: int, host: str) -> bool:
    """True when a process may listen there now. ``host``: an address, as a number."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Without it a port that a stopped stack used stays "taken" for a minute; a listener still shows.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def search(wanted: int, is_free: Free, taken: set[int], width: int = 1) -> int:
    """First of ``width`` free ports in a row at or behind ``wanted``; they are added to ``taken``.

    Raises:
        PortError: none within :data:`SEARCH`.
    """
    for first in range(wanted, min(wanted + SEARCH, 65536 - width + 1)):
        row = range(first, first + width)
        if all(port not in taken and is_free(port) for port in row):
            taken.update(row)
            return first
    raise PortError(
        f"no free port from {wanted} on ({SEARCH} tried): stop what listens there, or name another --port"
    )


def allocate(settings: StackSettings, is_free: Free = free) -> Ports:
    """Free ports for every process of the stack.

    Raises:
        PortError: none free behind a wanted one.
    """
    taken: set[int] = set()
    router = search(settings.port, is_free, taken) if settings.router else settings.port

    def engines(count: int, base: int) -> tuple[EnginePorts, ...]:
        return tuple(
            EnginePorts(
                search(base, is_free, taken),
                search(SIDE_CHANNEL_BASE, is_free, taken, settings.data_parallel),
            )
            for _ in range(count)
        )

    return Ports(router, engines(settings.prefill, PREFILL_BASE), engines(settings.decode, DECODE_BASE))
