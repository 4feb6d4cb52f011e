"""The engine's HTTP: vLLM's paths, ours, and the simulator's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any
from uuid import uuid4

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon_server.protocol import HANDLE_OBJECT, INFO_PATH, LEASES_PATH, PROTOCOL_HEADER, LeaseRequest
from antiphon_server.simulator.ask import Ask, BadRequestError, read_chat, read_completion, read_tokenize
from antiphon_server.simulator.engine import SimulatedEngine
from antiphon_server.simulator.faults import (
    Fault,
    FaultMiddleware,
    answer_error,
    drop_connection,
)
from antiphon_server.simulator.job import EngineDiedError, Job, KvLoadError, Output, Received
from antiphon_server.simulator.metrics import exposition
from antiphon_server.simulator.reply import ChatReply, CompletionReply, Reply, handle_of
from antiphon_server.simulator.settings import Settings

Read = Callable[[Any, Settings], Ask]
Word = Callable[[Ask, str, int, str], Reply]


class FaultRequest(msgspec.Struct, frozen=True):
    """Body of ``POST /simulator/faults``; ``clear`` comes first, ``restart`` last."""

    faults: list[Fault] = []
    clear: bool = False
    expire: bool = False
    restart: bool = False


def app(engine: SimulatedEngine) -> ASGIApp:
    """The engine as one ASGI app. In-process, a dropped connection raises ``ConnectionDroppedError``."""
    http = _Http(engine)
    routes = [
        Route("/v1/chat/completions", http.chat, methods=["POST"]),
        Route("/v1/completions", http.completions, methods=["POST"]),
        Route("/v1/models", http.models),
        Route("/tokenize", http.tokenize, methods=["POST"]),
        Route("/health", http.health),
        Route("/metrics", http.metrics),
        Route("/simulator/faults", http.inject, methods=["POST"]),
        Route("/simulator/books", http.books),
    ]
    if engine.settings.antiphon:
        routes += [Route(LEASES_PATH, http.leases, methods=["POST"]), Route(INFO_PATH, http.info)]
    return FaultMiddleware(_Key(Starlette(routes=routes), engine.settings.api_key), engine.faults)


class _Key:
    """Asks for the engine's key where vLLM does, and on our own paths."""

    def __init__(self, inner: ASGIApp, key: str | None) -> None:
        self._inner = inner
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._key is not None and scope["type"] == "http":
            guarded = scope["path"].startswith(("/v1/", "/antiphon/"))
            given = dict(scope["headers"]).get(b"authorization")
            if guarded and given != f"Bearer {self._key}".encode():
                await answer_error(send, 401, "Unauthorized", "AuthenticationError")
                return
        await self._inner(scope, receive, send)


class _Http:
    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    async def chat(self, request: Request) -> Response:
        return await self._generation(request, read_chat, ChatReply, "chatcmpl")

    async def completions(self, request: Request) -> Response:
        return await self._generation(request, read_completion, CompletionReply, "cmpl")

    async def models(self, request: Request) -> Response:
        own = self._engine.settings
        card = {"id": own.model, "object": "model", "owned_by": "vllm", "max_model_len": own.max_model_len}
        return _json({"object": "list", "data": [card]})

    async def tokenize(self, request: Request) -> Response:
        try:
            ids = read_tokenize(await _body(request), self._engine.settings)
        except BadRequestError as error:
            return _error(error)
        limit = self._engine.settings.max_model_len
        return _json({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    async def health(self, request: Request) -> Response:
        return Response(status_code=200)

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(exposition(self._engine))

    async def leases(self, request: Request) -> Response:
        body = await _body(request)
        self._record(request, body)
        try:
            asked = msgspec.convert(body, LeaseRequest)
        except msgspec.ValidationError as error:
            return _error(BadRequestError(str(error)))
        return _json(msgspec.to_builtins(self._engine.lease(asked)))

    async def info(self, request: Request) -> Response:
        return _json(msgspec.to_builtins(self._engine.info()))

    async def inject(self, request: Request) -> Response:
        try:
            asked = msgspec.convert(await _body(request), FaultRequest)
        except msgspec.ValidationError as error:
            return _error(BadRequestError(str(error)))
        if asked.clear:
            self._engine.faults.clear()
        self._engine.faults.add(*asked.faults)
        if asked.expire:
            self._engine.expire_leases()
        if asked.restart:
            self._engine.restart()
        return _json({"waiting": len(self._engine.faults)})

    async def books(self, request: Request) -> Response:
        engine = self._engine
        return _json(
            {
                "engine_id": engine.engine_id,
                "epoch": engine.epoch,
                "pinned": engine.pinned,
                "pinned_blocks": engine.pinned_blocks,
                "used_blocks": engine.used_blocks,
                "running": engine.running,
                "waiting": engine.waiting,
                "requests": len(engine.requests),
                "counters": asdict(engine.counters),
            }
        )

    def _record(self, request: Request, body: Any) -> None:
        # A copy: reading the request takes the forwarded ids out of it.
        kept = orjson.loads(orjson.dumps(body))
        self._engine.requests.append(Received(request.method, request.url.path, dict(request.headers), kept))

    async def _generation(self, request: Request, read: Read, word: Word, prefix: str) -> Response:
        engine = self._engine
        body: Any = None
        try:
            body = await _body(request)
            self._record(request, body)
            ask = read(body, engine.settings)
        except BadRequestError as error:
            handle = body.get("kv_transfer_params") if isinstance(body, dict) else None
            engine.refuse(handle if isinstance(handle, dict) else None)
            return _error(error)
        request_id = f"{prefix}-{request.headers.get('x-request-id') or uuid4().hex}"
        reply = word(ask, request_id, int(time.time()), engine.settings.model)
        told = engine.settings.antiphon and request.headers.get(PROTOCOL_HEADER) is not None
        return Generation(engine, ask, request_id, reply, handle_event=told)


class Generation(Response):
    """Runs the request when it is sent, and aborts it when the client leaves."""

    def __init__(
        self, engine: SimulatedEngine, ask: Ask, request_id: str, reply: Reply, *, handle_event: bool
    ) -> None:
        super().__init__()
        self._engine = engine
        self._ask = ask
        self._request_id = request_id
        self._reply = reply
        self._handle_event = handle_event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._stream(send) if self._ask.stream else self._whole(scope, receive, send)
        try:
            await _until_gone(receive, work)
        except EngineDiedError as error:
            await drop_connection(error)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers: list[list[Output]] = [[] for _ in range(self._ask.choices)]
        try:
            async with aclosing(self._outputs()) as outputs:
                async for index, output in outputs:
                    answers[index].append(output)
        except KvLoadError:
            await answer_error(send, 500, "Internal server error", "InternalServerError")
            return
        await _json(self._reply.whole(answers))(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._events()) as events:
            async for event in events:
                raw = b"data: " + (event if isinstance(event, bytes) else orjson.dumps(event)) + b"\n\n"
                await send({"type": "http.response.body", "body": raw, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[Mapping[str, Any] | bytes]:
        answers: list[list[Output]] = [[] for _ in range(self._ask.choices)]
        opened = False
        try:
            async with aclosing(self._outputs()) as outputs:
                async for index, output in outputs:
                    if not opened:
                        opened = True
                        for chunk in self._reply.opening():
                            yield chunk
                    answers[index].append(output)
                    shown = self._reply.chunk(index, output)
                    if shown is not None:
                        yield shown
        except KvLoadError:
            error = {"message": "Internal server error", "type": "InternalServerError", "param": None}
            yield {"error": {**error, "code": 500}}
        else:
            if self._ask.usage:
                yield self._reply.usage(answers)
            handle = handle_of(answers)
            if handle is not None and self._handle_event:
                yield {"object": HANDLE_OBJECT, "kv_transfer_params": handle}
        yield b"[DONE]"

    async def _outputs(self) -> AsyncGenerator[tuple[int, Output]]:
        ask = self._ask
        for index in range(ask.choices):
            job = Job(
                request_id=f"{self._request_id}-{uuid4().hex[:8]}",
                prompt=ask.prompt,
                script=ask.script,
                limit=ask.limit,
                salt=ask.salt,
                nonce=ask.nonce + index,
                handle=ask.handle,
            )
            async with aclosing(self._engine.generate(job)) as outputs:
                async for output in outputs:
                    yield index, output


async def _until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``; cancel it when the client leaves."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = [task for task in (working, gone) if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    if not working.cancelled():
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> Any:
    try:
        return orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


def _error(error: BadRequestError) -> Response:
    kind = "NotFoundError" if error.status == 404 else "BadRequestError"
    body = {"message": error.message, "type": kind, "param": error.param, "code": error.status}
    return _json({"error": body}, error.status)
