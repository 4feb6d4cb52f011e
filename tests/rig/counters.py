"""What an engine says it did: its own counters, and its leases."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import httpx

from antiphon_server import counters
from antiphon_server.counters import Counters

WAIT_S = 30.0
T = TypeVar("T")


def read(url: str) -> Counters:
    """The counters of the engine at ``url``."""
    return counters.read(httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text).counters


def pinned(url: str) -> int:
    """Finished requests whose blocks the engine keeps for a reader."""
    reply = httpx.post(f"{url}/antiphon/leases", json={}, timeout=60, trust_env=False)
    return int(reply.raise_for_status().json()["pinned"])


def eventually(read: Callable[[], T], accept: Callable[[T], bool], within: float = WAIT_S) -> T:
    """The first accepted reading, or the last one when time is up: for what engines report a little late."""
    deadline = time.monotonic() + within
    while not accept(value := read()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value
