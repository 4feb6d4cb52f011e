"""Closed-loop load: so many connections, each with its next request as soon as the last was answered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from antiphon_server.bench.overhead.connection import Connection, ReplyError, connect
from antiphon_server.bench.overhead.request import Body, head

_REUSE = b"x-antiphon-reuse"
_END = b"data: [DONE]"
_TIMEOUT_S = 60.0


class Naming(StrEnum):
    """Which conversation a request belongs to."""

    NONE = "none"
    NEW = "new"  # each to one of its own
    SAME = "same"  # all of a connection to one


@dataclass(frozen=True, slots=True)
class Burst:
    """What came of load for some seconds. ``first``, ``whole``: seconds from each request to its reply's
    first byte and to its end. ``paths``: those the router named, counted. ``seconds``: from first to last."""

    first: tuple[float, ...]
    whole: tuple[float, ...]
    paths: dict[str, int]
    seconds: float

    @property
    def count(self) -> int:
        """Of requests."""
        return len(self.whole)


class Load:
    """Load on one URL. Connections are kept from one burst to the next, as clients of a router keep theirs.
    Conversations too: ``SAME`` has one for each connection and body. ``before``: URL to which each request
    goes too, first: both legs without a router."""

    def __init__(self, url: str, naming: Naming, *, before: str | None = None) -> None:
        self._url, self._before = url, before
        self._authority = urlsplit(url).netloc
        self._prefills: list[Connection] = []
        self._naming = naming
        self._connections: list[Connection] = []
        self._numbers = itertools.count()
        self._encoded: dict[Body, bytes] = {}

    async def burst(self, body: Body, connections: int, seconds: float, least: int = 1) -> Burst:
        """Ask for so many seconds, and ``least`` times a connection.

        Raises:
            ReplyError: one was not answered as it should be.
        """
        try:
            self._connections = await _renewed(self._connections, self._url, connections)
            if self._before is not None:
                self._prefills = await _renewed(self._prefills, self._before, connections)
        except OSError as error:
            raise ReplyError(f"{self._url} takes no connection: {error}") from error
        data = self._encoded.setdefault(body, body.encoded())
        first: list[float] = []
        whole: list[float] = []
        paths: Counter[str] = Counter()
        begun = time.perf_counter()
        end = begun + seconds

        async def work(place: int, connection: Connection) -> None:
            heads = self._heads(place, body, len(data))
            for number in itertools.count():
                if number >= least and time.perf_counter() >= end:
                    return
                own = next(heads)
                earlier = await self._prefills[place].ask(own, data) if self._before is not None else None
                sent = await connection.ask(own, data)
                sent = earlier if earlier is not None else sent
                if body.stream and not any(_END in part for part in connection.body[-2:]):
                    raise ReplyError("a stream ended before its last event")
                first.append(connection.begun - sent)
                whole.append(connection.ended - sent)
                paths[_path(connection.headers.get(_REUSE))] += 1

        try:
            async with asyncio.timeout(seconds + _TIMEOUT_S), asyncio.TaskGroup() as group:
                for place in range(connections):
                    group.create_task(work(place, self._connections[place]))
        except* ReplyError as errors:
            raise errors.exceptions[0] from None
        except* TimeoutError:
            raise ReplyError(f"no reply within {_TIMEOUT_S:g} s") from None
        return Burst(tuple(first), tuple(whole), dict(paths), time.perf_counter() - begun)

    def _heads(self, place: int, body: Body, length: int) -> Iterator[bytes]:
        if self._naming is Naming.NEW:
            return (head(self._authority, length, f"new-{number}") for number in self._numbers)
        name = f"{body.size}-{body.stream}-{place}" if self._naming is Naming.SAME else None
        return itertools.repeat(head(self._authority, length, name))

    def drop(self) -> None:
        """Close all connections."""
        for connection in (*self._connections, *self._prefills):
            connection.close()
        self._connections, self._prefills = [], []


async def _renewed(connections: list[Connection], url: str, count: int) -> list[Connection]:
    """Those that are open still, and new ones up to ``count``."""
    parts = urlsplit(url)
    usable = [one for one in connections if one.usable]
    missing = range(count - len(usable))
    return usable + [await connect(parts.hostname or "", parts.port or 80) for _ in missing]


def _path(said: bytes | None) -> str:
    return said.decode("latin-1").split(";")[0].removeprefix("path=") if said is not None else "none"
