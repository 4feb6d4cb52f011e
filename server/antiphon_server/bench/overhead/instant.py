"""A prefill and a decode engine that answer at once, in one process: what a router is measured against.

They speak vLLM's HTTP as far as routers use it, and our protocol. Nobody tokenises: a request says in
``user`` how long its prompt is (``tokens=<n>``). Lean, for it shares the machine with what is measured.

    python -m antiphon_server.bench.overhead.instant PREFILL_PORT DECODE_PORT

``PUT /orders`` says how streams are sent: see :class:`Orders`. ``GET /counts`` gives :class:`Counts`.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import sys
import time
from collections import deque

import msgspec
import uvloop

from antiphon_server import protocol
from antiphon_server.bench.overhead import replies
from antiphon_server.bench.overhead.receiver import Receiver, Request
from antiphon_server.bench.overhead.replies import Wanted
from antiphon_server.protocol import PROTOCOL_HEADER, LeaseReply, LeaseRequest

HOST = "127.0.0.1"
ORDERS_PATH, COUNTS_PATH = "/orders", "/counts"
TURNS = frozenset({"/v1/chat/completions", "/v1/completions"})
_OURS = re.compile(rb"\r\n" + PROTOCOL_HEADER.encode() + rb":", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_TOKENS = re.compile(rb'"user": ?"tokens=(\d+)"')
_LIMIT = re.compile(rb'"max_tokens": ?(\d+)')
_STREAM = re.compile(rb'"stream": ?true')
_IDS = re.compile(rb'"return_token_ids": ?true')
_KEPT = b'"kv_transfer_params"'
_HANDED = re.compile(rb'"remote_request_id": ?"')
_TOKENS_UNSAID = 1000
_TICK = 0.001
_METRICS = b'# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{engine="0"} 0.0\n'


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``interval``: seconds between two chunks of a stream; 0: all at once. ``lose``: of each stream, the
    chunk of this number is never sent, as a fault to be seen. ``swap``: this one comes after its successor.
    ``token_ids``: prefill returns the prompt's ids when asked. ``hold``: streams with an interval wait until
    there are so many, and then begin, spread over it."""

    interval: float = 0.0
    lose: int | None = None
    swap: int | None = None
    token_ids: bool = True
    hold: int = 0


class Counts(msgspec.Struct):
    """Since the start. ``late``: seconds by which the latest chunk left behind its time."""

    prefill: int = 0
    decode: int = 0
    released: int = 0
    late: float = 0.0


class _Stream:
    __slots__ = ("connection", "due", "order", "sent", "wanted")

    def __init__(self, connection: Connection, wanted: Wanted, order: list[int], due: float) -> None:
        self.connection, self.wanted, self.order, self.due = connection, wanted, order, due
        self.sent = 0


class Engines:
    """What both engines share: orders, counts, and the streams under way."""

    def __init__(self) -> None:
        self.orders = Orders()
        self.counts = Counts()
        self.ids = itertools.count(1)
        self._due: deque[_Stream] = deque()
        self._held: list[_Stream] = []
        self._pacing: asyncio.Task[None] | None = None

    def give(self, orders: Orders) -> None:
        """Go by these from now on. Streams that still wait for others are forgotten."""
        self.orders = orders
        self.counts.late = 0.0
        self._held.clear()

    def order(self, chunks: int) -> list[int]:
        """Numbers of a stream's chunks as they are sent."""
        numbers = list(range(chunks))
        swap, lose = self.orders.swap, self.orders.lose
        if swap is not None and swap + 1 < chunks:
            numbers[swap], numbers[swap + 1] = numbers[swap + 1], numbers[swap]
        return [number for number in numbers if number != lose]

    def pace(self, connection: Connection, wanted: Wanted) -> None:
        """Send its chunks one by one, from now on or when the others are there."""
        now, interval = asyncio.get_running_loop().time(), self.orders.interval
        self._held.append(_Stream(connection, wanted, self.order(wanted.chunks), now))
        if len(self._held) < self.orders.hold:
            return
        for place, stream in enumerate(self._held):
            stream.due = now + interval * place / len(self._held)
        self._due.extend(self._held)
        self._held.clear()
        if self._pacing is None or self._pacing.done():
            self._pacing = asyncio.create_task(self._run())

    async def _run(self) -> None:
        # All streams have the same interval, so the one that was served last is due last.
        loop, due = asyncio.get_running_loop(), self._due
        while due:
            now = loop.time()
            while due and due[0].due <= now:
                stream = due.popleft()
                self.counts.late = max(self.counts.late, now - stream.due)
                if self._send(stream):
                    stream.due += self.orders.interval
                    due.append(stream)
            if due:
                await asyncio.sleep(max(_TICK, due[0].due - loop.time()))

    def _send(self, stream: _Stream) -> bool:
        """Its next chunk; False after the last."""
        connection = stream.connection
        if connection.closed:
            return False
        if not stream.sent:
            connection.write(replies.opening(stream.wanted))
        connection.write(stamped(stream.order[stream.sent]))
        stream.sent += 1
        if stream.sent < len(stream.order):
            return True
        connection.write(*self.parts(replies.ending(stream.wanted)))
        return False

    def parts(self, reply: replies.Parts) -> tuple[bytes, bytes, bytes]:
        """A reply with an id of its own."""
        before, after = reply
        return (before, replies.id_of(next(self.ids)), after) if after else (before, b"", b"")


def stamped(number: int) -> bytes:
    """A chunk that says which one it is and when it left."""
    return replies.chunk(f"{number}:{time.perf_counter_ns()}")


class Connection(Receiver):
    """A router's connection to one of the two engines."""

    def __init__(self, engines: Engines, role: str) -> None:
        super().__init__()
        self._engines, self._role = engines, role

    def serve(self, request: Request) -> None:
        method, path = request.line
        if _CHUNKED.search(request.head):
            self.write(replies.answer(b"{}", status="411 Length Required"))
        elif method == "POST" and path in TURNS:
            self._turn(request)
        else:
            self.write(self._other(method, path, request.body))

    def _turn(self, request: Request) -> None:
        engines, counts = self._engines, self._engines.counts
        tokens, limit = request.match(b'"user"', _TOKENS), request.match(b'"max_tokens"', _LIMIT)
        asks = engines.orders.token_ids and self._role == "prefill"
        wanted = Wanted(
            tokens=int(tokens[1]) if tokens else _TOKENS_UNSAID,
            ids=asks and request.match(b'"return_token_ids"', _IDS) is not None,
            ours=_OURS.search(request.head) is not None,
            kept=request.has(_KEPT),
            handed=request.match(b'"remote_request_id"', _HANDED) is not None,
            chunks=int(limit[1]) if limit else replies.ANSWER,
        )
        if self._role == "prefill":
            counts.prefill += 1
            self.write(*engines.parts(replies.prefill(wanted)))
            return
        counts.decode += 1
        if request.match(b'"stream"', _STREAM) is None:
            self.write(*engines.parts(replies.decode(wanted)))
        elif engines.orders.interval:
            engines.pace(self, wanted)
        else:
            chunks = map(stamped, engines.order(wanted.chunks))
            ending = engines.parts(replies.ending(wanted))
            self.write(b"".join((replies.opening(wanted), *chunks, *ending)))

    def _other(self, method: str, path: str, body: bytes) -> bytes:
        engines = self._engines
        match method, path:
            case "GET", protocol.INFO_PATH:
                return replies.answer(msgspec.json.encode(replies.info(self._role)))
            case "POST", protocol.LEASES_PATH:
                return replies.answer(msgspec.json.encode(self._leases(body)))
            case "GET", "/v1/models":
                model = {"id": replies.MODEL, "object": "model", "max_model_len": 1 << 20}
                return replies.answer(msgspec.json.encode({"object": "list", "data": [model]}))
            case "GET", "/metrics":
                return replies.answer(_METRICS, "text/plain")
            case "GET", "/counts":
                return replies.answer(msgspec.json.encode(engines.counts))
            case "PUT", "/orders":
                engines.give(msgspec.json.decode(body, type=Orders))
                return replies.answer(b"{}")
            case "GET", "/health" | "/get_server_info" | "/server_info":
                return replies.answer(b"{}")
            case _:
                return replies.answer(b'{"error":"not served"}', status="404 Not Found")

    def _leases(self, body: bytes) -> LeaseReply:
        request = msgspec.json.decode(body, type=LeaseRequest)
        now = time.perf_counter()
        self._engines.counts.released += len(request.release)
        deadlines = {renewal.id: now + renewal.ttl for renewal in request.renew}
        return LeaseReply({**deadlines, **dict.fromkeys(request.release, now)}, 0)


async def main(prefill_port: int, decode_port: int) -> None:
    """Serve until told to stop."""
    loop, engines, stop = asyncio.get_running_loop(), Engines(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    servers = [
        await loop.create_server(lambda role=role: Connection(engines, role), HOST, port, backlog=4096)  # type: ignore[misc]
        for role, port in (("prefill", prefill_port), ("decode", decode_port))
    ]
    await stop.wait()
    for server in servers:
        server.close()


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))
