"""Very many streams at once, each chunk timed: what a router adds between two chunks, and what it loses."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast
from urllib.parse import urlsplit

import httptools

from antiphon_server.bench.overhead.connection import ReplyError
from antiphon_server.bench.overhead.request import Body, head

OPENING = 64
"""Streams that are being opened at once."""
_CHUNK = re.compile(rb'"content":"(\d+):(\d+)"')
_EVENT_END = b"\n\n"
_DONE = b"data: [DONE]"
_NS = 1e-9
_TAIL, _FATES = 80, 5
"""Bytes of a stream's end, and kinds of ends, that are told."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A chunk: its number in its stream, when it left decode and when it came, in seconds."""

    number: int
    sent: float
    received: float


@dataclass(frozen=True, slots=True)
class Received:
    """A stream as its client saw it. ``done``: it had its last event. ``open``: it had not ended when it was
    given up. ``tail``: its last bytes."""

    arrivals: tuple[Arrival, ...]
    done: bool
    open: bool = False
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class Crowd:
    """All streams of a run. ``begun``: when the first chunk came, by the clock of arrivals, in seconds."""

    streams: tuple[Received, ...]
    begun: float

    def between(self, since: float, until: float) -> tuple[Received, ...]:
        """What left decode in a stretch of time, in seconds from ``begun`` on."""
        first, last = self.begun + since, self.begun + until
        return tuple(
            replace(one, arrivals=tuple(a for a in one.arrivals if first <= a.sent < last))
            for one in self.streams
        )


def lost(streams: Iterable[Received], chunks: int) -> int:
    """Chunks that never came, of so many in each stream; an end that never came counts as one."""
    return sum(chunks - len({a.number for a in one.arrivals}) + (not one.done) for one in streams)


def fates(streams: Iterable[Received], chunks: int) -> list[str]:
    """What became of the streams that were not whole, the most frequent first."""
    told = Counter(
        f"{'left open' if one.open else 'ended'} after {len(one.arrivals)} of {chunks} chunks, {one.tail!r}"
        for one in streams
        if lost([one], chunks)
    )
    return [f"{count} x {text}" for text, count in told.most_common(_FATES)]


def disordered(streams: Iterable[Received]) -> int:
    """Chunks that came after a later one, or twice."""
    return sum(
        b.number <= a.number for one in streams for a, b in zip(one.arrivals, one.arrivals[1:], strict=False)
    )


def gaps(streams: Iterable[Received]) -> list[float]:
    """Seconds between two chunks, as they came."""
    return [
        b.received - a.received
        for one in streams
        for a, b in zip(one.arrivals, one.arrivals[1:], strict=False)
    ]


def delays(streams: Iterable[Received]) -> list[float]:
    """Seconds from decode to the client, of each chunk."""
    return [a.received - a.sent for one in streams for a in one.arrivals]


class _Connection(asyncio.Protocol):
    """Keeps what comes, with the time; it is read when the clock has stopped."""

    def __init__(self, began: Callable[[], None]) -> None:
        self._began = began
        self._parser = httptools.HttpResponseParser(self)
        self._now = 0
        self.pieces: list[tuple[int, bytes]] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter_ns()
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if not self.pieces:
            self._began()
        self.pieces.append((self._now, data))

    def on_message_complete(self) -> None:
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def status(self) -> int:
        return self._parser.get_status_code() if self.pieces else 0


async def crowd(
    url: str, count: int, chunks: int, *, size: int, limit: float, began: Callable[[], None]
) -> Crowd:
    """Open so many streams of ``chunks`` and read all to the end. ``size``: bytes of each request. ``limit``:
    seconds until those that are not over are given up. ``began``: called when the first chunk has come.

    Raises:
        ReplyError: one was answered by an error, or none was answered.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    data = Body(size, stream=True, chunks=chunks).encoded()
    opening = asyncio.Semaphore(OPENING)
    start: list[float] = []

    def first() -> None:
        if not start:
            start.append(time.perf_counter())
            began()

    async def open_one(number: int) -> _Connection:
        async with opening:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(first), host, port
            )
        assert connection.transport is not None
        named = head(parts.netloc, len(data), f"stream-{start_id}-{number}")
        connection.transport.writelines((named, data))
        return connection

    start_id = time.monotonic_ns()
    connections: list[_Connection] = []
    gc.collect()
    gc.disable()
    try:
        connections += await asyncio.gather(*map(open_one, range(count)))
        await asyncio.wait([one.over for one in connections], timeout=limit)
        still = {id(one) for one in connections if not one.over.done()}
    except OSError as error:
        raise ReplyError(f"{url} takes no connection: {error}") from error
    finally:
        gc.enable()
        for one in connections:
            if one.transport is not None:
                one.transport.abort()
    failed = [one for one in connections if one.pieces and one.status() != 200]
    if failed or not start:
        said = b"".join(piece for _, piece in failed[0].pieces)[:300] if failed else b"nothing"
        raise ReplyError(f"{len(failed)} of {count} streams were not opened; one was told {said!r}")
    return Crowd(tuple(replace(read(one.pieces), open=id(one) in still) for one in connections), start[0])


def read(pieces: Sequence[tuple[int, bytes]]) -> Received:
    """What a stream's bytes say. ``pieces``: of its body, each with the nanosecond in which it came. An event
    has come with its last byte."""
    arrivals: list[Arrival] = []
    rest, done = b"", False
    for now, piece in pieces:
        data = rest + piece
        cut = data.rfind(_EVENT_END) + len(_EVENT_END)
        if cut < len(_EVENT_END):
            rest = data
            continue
        whole, rest = data[:cut], data[cut:]
        arrivals += [Arrival(int(n), int(sent) * _NS, now * _NS) for n, sent in _CHUNK.findall(whole)]
        done = done or _DONE in whole
    return Received(tuple(arrivals), done, tail=b"" if done else (pieces[-1][1] if pieces else b"")[-_TAIL:])
