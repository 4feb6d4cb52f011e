"""Faults to inject: what goes wrong with the next requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Literal

import msgspec
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CONNECTION: ContextVar[asyncio.Transport | None] = ContextVar("connection", default=None)
"""The socket that the present request came in by; None in-process."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of trouble for the next ``times`` requests whose path begins with ``path``.

    ``status``: answered with ``code``, ``seconds`` later. ``drop``: the connection ends before the first
    byte; with ``worked`` after the engine did the work. ``cut``: it ends after ``chunks`` chunks of the body.
    ``delay``: ``seconds`` before anything is done. ``slow``: ``seconds`` between the work and the first byte.
    ``stall``: the engine stops reading and never answers. Clearing the faults ends delays, and stalled
    connections.
    """

    kind: Literal["status", "drop", "cut", "delay", "slow", "stall"]
    path: str = "/v1/"
    times: int = 1
    code: int = 503
    seconds: float = 0.0
    chunks: int = 1
    worked: bool = False


class ConnectionDroppedError(ConnectionResetError):
    """The engine ended the connection."""


async def drop_connection(reason: Exception) -> None:
    """End the connection that the present request came in by, once what was sent is out.

    Raises:
        ConnectionDroppedError: in-process, where there is no connection to end.
    """
    transport = CONNECTION.get()
    if transport is None:
        raise ConnectionDroppedError(str(reason)) from reason
    transport.close()
    # The server hears of it in the next round of the loop; before, it would try to answer with a 500.
    await asyncio.sleep(0)


class Faults:
    """Faults that wait for their requests, first come first served."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._cleared = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, *faults: Fault) -> None:
        """Inject faults."""
        self._waiting.extend(faults)

    def clear(self) -> None:
        """Forget the faults that wait, and end those that stall."""
        self._waiting.clear()
        self._cleared.set()
        self._cleared = asyncio.Event()

    def take(self, path: str) -> Fault | None:
        """The fault for a request, used up by one."""
        for index, fault in enumerate(self._waiting):
            if path.startswith(fault.path):
                left = msgspec.structs.replace(fault, times=fault.times - 1)
                self._waiting[index : index + 1] = [left] if left.times > 0 else []
                return fault
        return None

    async def pause(self, seconds: float | None = None) -> None:
        """Wait so long, or until the faults are cleared."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._cleared.wait()


class FaultMiddleware:
    """Does to requests what the faults say, and ends the connections of those that the engine lost."""

    def __init__(self, app: ASGIApp, faults: Faults) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self._faults.take(scope["path"]) if scope["type"] == "http" else None
        try:
            if fault is None:
                await self._app(scope, receive, send)
            else:
                await self._suffer(fault, scope, receive, send)
        except ConnectionDroppedError as error:
            await drop_connection(error)

    async def _suffer(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        match fault.kind:
            case "status":
                await self._faults.pause(fault.seconds)
                await answer_error(send, fault.code, "injected fault", "InternalServerError")
                return
            case "stall":
                transport = CONNECTION.get()
                if transport is not None:
                    transport.pause_reading()
                await self._faults.pause()
                raise ConnectionDroppedError("stalled until the faults were cleared")
            case "drop" if not fault.worked:
                raise ConnectionDroppedError("dropped before the first byte")
            case "delay":
                await self._faults.pause(fault.seconds)
        await self._app(scope, receive, _Faulty(fault, self._faults, send))


class _Faulty:
    def __init__(self, fault: Fault, faults: Faults, send: Send) -> None:
        self._fault = fault
        self._faults = faults
        self._send = send
        self._chunks = 0

    async def __call__(self, message: Message) -> None:
        fault = self._fault
        if message["type"] == "http.response.start":
            if fault.kind == "drop":
                raise ConnectionDroppedError("dropped after the work, before the first byte")
            if fault.kind == "slow":
                await self._faults.pause(fault.seconds)
        elif fault.kind == "cut" and message.get("body"):
            if self._chunks == fault.chunks:
                raise ConnectionDroppedError(f"cut after {fault.chunks} chunks")
            self._chunks += 1
            if not message.get("more_body", False):
                # A reply of one piece is cut inside it.
                half = message["body"][: len(message["body"]) // 2]
                await self._send({"type": "http.response.body", "body": half, "more_body": True})
                raise ConnectionDroppedError("cut inside the body")
        await self._send(message)


async def answer_error(send: Send, status: int, message: str, kind: str, param: str | None = None) -> None:
    """An error in vLLM's form."""
    body: Mapping[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    raw = orjson.dumps(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})
