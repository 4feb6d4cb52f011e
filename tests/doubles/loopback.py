"""A guard: what a test runs reaches this machine and no other."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HERE = frozenset({"127.0.0.1", "::1", "localhost"})


class EscapeError(OSError):
    """Something wanted to leave this machine."""


@pytest.fixture
def escapes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Refuse other hosts; the list holds those that were wanted, by whichever thread."""
    connect, connect_ex, resolve = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo
    wanted: list[str] = []

    def check(host: Any) -> None:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name not in HERE:
            wanted.append(name)
            raise EscapeError(f"a test wanted to reach {name}")

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        def connecting(self: socket.socket, address: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6):
                check(address[0])
            return original(self, address)

        return connecting

    def resolving(host: Any, *args: Any, **kwargs: Any) -> Any:
        check(host)
        return resolve(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", guarded(connect))
    monkeypatch.setattr(socket.socket, "connect_ex", guarded(connect_ex))
    monkeypatch.setattr(socket, "getaddrinfo", resolving)
    return wanted


@pytest.fixture
def loopback_only(escapes: list[str]) -> Iterator[None]:
    """Fail the test where anything wanted to leave."""
    yield
    assert escapes == []
