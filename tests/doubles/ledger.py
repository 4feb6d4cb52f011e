"""Every leg that reached an engine, and what became of it: who must have let go of which lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon_server.protocol import HANDLE_OBJECT, LEASES_PATH
from antiphon_server.simulator import SimulatedEngine
from antiphon_server.simulator.faults import CONNECTION
from doubles.memory_network import MemoryTransport

_HANDLE = HANDLE_OBJECT.encode()
_TRIES = 4
"""Times that a router asks an engine to release a lease, before it leaves it to the engine's clock."""


@dataclass
class Leg:
    """A request to an engine. ``owner``: whose turn it is, from the field ``user``. ``lease``: that its
    handle names, ``holder``: the life of an engine that granted it. ``released``: leases that it asks to
    release."""

    engine: SimulatedEngine
    engine_id: str
    path: str
    request_id: str
    raw: bytes = b""
    owner: str = ""
    lease: str | None = None
    holder: str | None = None
    status: int | None = None
    released: list[str] = field(default_factory=list)
    transport: MemoryTransport | None = None
    _handle_at: int | None = None
    _end_at: int | None = None

    @property
    def answered(self) -> bool:
        """All of the reply reached the router."""
        return self._reached(self._end_at)

    @property
    def told(self) -> bool:
        """The handle that the reply carries reached the router, which was not about to hang up just then."""
        at = self._handle_at if self._handle_at is not None else self._end_at
        return self._reached(at) and self.transport is not None and not self.transport.peer.crossed

    def sent(self, message: Message, written: int) -> None:
        """A piece of the reply was sent. ``written``: bytes on the connection before."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        if self.transport is None or message["type"] != "http.response.body":
            return
        if self.transport.written == written:
            return  # the router has hung up
        if _HANDLE in message.get("body", b""):
            self._handle_at = self.transport.written
        if not message.get("more_body", False):
            self._end_at = self.transport.written

    def _reached(self, mark: int | None) -> bool:
        return mark is not None and self.transport is not None and self.transport.peer.delivered >= mark


class Ledger:
    """``look``: is shown each leg with a body once that is there."""

    def __init__(self, look: Callable[[Leg], None]) -> None:
        self.legs: list[Leg] = []
        self._look = look
        self._by_request: dict[str, list[Leg]] = {}
        self._by_lease: dict[str, list[Leg]] = {}
        self._releases: dict[str, list[Leg]] = {}

    def watched(self, app: ASGIApp, engine: SimulatedEngine) -> ASGIApp:
        """The engine's application, with its legs written down."""

        async def watch(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope.get("path", "")
            if not (path.startswith("/v1/") or path == LEASES_PATH):
                await app(scope, receive, send)
                return
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            leg = Leg(engine, engine.engine_id, path, headers.get(b"x-request-id", ""))
            connection = CONNECTION.get()
            leg.transport = connection if isinstance(connection, MemoryTransport) else None
            # Read before a fault can strike, and handed on after.
            parts: list[bytes] = []
            message: Message = {"type": "http.request", "more_body": True}
            while message.get("more_body", False):
                message = await receive()
                parts.append(message.get("body", b""))
            leg.raw = b"".join(parts)
            if message["type"] == "http.request" and leg.raw:
                self._enter(leg)
            waiting: list[Message] = [{"type": message["type"], "body": leg.raw, "more_body": False}]

            async def receiving() -> Message:
                return waiting.pop() if waiting else await receive()

            async def sending(message: Message) -> None:
                written = leg.transport.written if leg.transport is not None else 0
                await send(message)
                leg.sent(message, written)

            await app(scope, receiving, sending)

        return watch

    def origin(self, lease: str) -> list[Leg]:
        """The legs that may have granted a lease: its id is the leg's request id with words around it."""
        return self._by_request.get("-".join(lease.split("-")[1:-1]), [])

    def excused(self, lease: str) -> bool:
        """Nobody could have released it: its router never heard of it, could not tell whether somebody still
        reads it, or has asked in vain."""
        if any(not leg.told for leg in self.origin(lease)):
            return True
        if any(not leg.answered for leg in self._by_lease.get(lease, ())):
            return True
        asked = self._releases.get(lease, [])
        return len(asked) >= _TRIES and not any(leg.answered and leg.status == 200 for leg in asked)

    def story(self, lease: str) -> str:
        """What is known of a lease."""
        granted = [f"granted to {leg.owner} by {leg.request_id}" for leg in self.origin(lease)]
        sent = [f"sent in {leg.request_id}, answered: {leg.answered}" for leg in self.spent(lease)]
        asked = [f"released: {leg.answered}" for leg in self._releases.get(lease, ())]
        return "; ".join([*granted, *sent, *asked])

    def spent(self, lease: str) -> list[Leg]:
        """Legs whose handle named it."""
        return self._by_lease.get(lease, [])

    def __iter__(self) -> Iterator[Leg]:
        return iter(self.legs)

    def _enter(self, leg: Leg) -> None:
        body: Any = orjson.loads(leg.raw)
        self.legs.append(leg)
        if leg.path == LEASES_PATH:
            leg.released = list(body.get("release") or ())
            for lease in leg.released:
                self._releases.setdefault(lease, []).append(leg)
            return
        self._by_request.setdefault(leg.request_id, []).append(leg)
        leg.owner = str(body.get("user"))
        params = body.get("kv_transfer_params") or {}
        named = params.get("remote_request_id")
        if named is not None:
            leg.lease = str(named)
            leg.holder = str(params.get("remote_engine_id"))
            self._by_lease.setdefault(leg.lease, []).append(leg)
        self._look(leg)
