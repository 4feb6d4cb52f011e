"""The engine's HTTP: vLLM's paths, ours, and the simulator's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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

from antiphon_server.protocol import (
    INFO_PATH,
    LEASES_PATH,
    PROTOCOL_HEADER,
    LeaseRequest,
)
from antiphon_server.simulator.ask import Ask, BadRequestError, read_chat, read_completion, read_tokenize
from antiphon_server.simulator.engine import SimulatedEngine
from antiphon_server.simulator.faults import (
    Fault,
    FaultMiddleware,
    answer_error,
)
from antiphon_server.simulator.generation import Generation, json_reply
from antiphon_server.simulator.job import Received
from antiphon_server.simulator.messages import MessagesReply, anthropic_error, read_messages
from antiphon_server.simulator.metrics import exposition
from antiphon_server.simulator.reply import (
    ChatReply,
    CompletionReply,
    Reply,
    openai_error,
)
from antiphon_server.simulator.responses import ResponsesReply, Store, not_found, read_responses
from antiphon_server.simulator.tokens import Tokenizer

Read = Callable[[Any, str, int], tuple[Ask, Reply]]
"""A body, the request's id and the time in: what is asked, and how it is answered."""
Refuse = Callable[[int, str, str, str | None], Mapping[str, Any]]


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
        Route("/v1/responses", http.responses, methods=["POST"]),
        Route("/v1/responses/{id}", http.response),
        Route("/v1/responses/{id}/cancel", http.cancel, methods=["POST"]),
        Route("/v1/messages", http.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", http.count_tokens, methods=["POST"]),
        Route("/v1/models", http.models),
        Route("/tokenize", http.tokenize, methods=["POST"]),
        Route("/detokenize", http.detokenize, methods=["POST"]),
        Route("/health", http.health),
        Route("/metrics", http.metrics),
        Route("/simulator/faults", http.inject, methods=["POST"]),
        Route("/simulator/books", http.books),
    ]
    if engine.settings.antiphon:
        routes += [Route(LEASES_PATH, http.leases, methods=["POST"]), Route(INFO_PATH, http.info)]
    if engine.settings.dev:
        routes.append(Route("/reset_prefix_cache", http.forget, methods=["POST"]))
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
        self._stored: Store = {}
        self._stored_in = engine.epoch

    async def chat(self, request: Request) -> Response:
        def read(body: Any, request_id: str, created: int) -> tuple[Ask, Reply]:
            ask = read_chat(body, self._engine.settings)
            return ask, ChatReply(ask, f"chatcmpl-{request_id}", created, self._engine.settings.model)

        return await self._generation(request, read)

    async def completions(self, request: Request) -> Response:
        def read(body: Any, request_id: str, created: int) -> tuple[Ask, Reply]:
            ask = read_completion(body, self._engine.settings)
            return ask, CompletionReply(ask, f"cmpl-{request_id}", created, self._engine.settings.model)

        return await self._generation(request, read)

    async def messages(self, request: Request) -> Response:
        def read(body: Any, request_id: str, created: int) -> tuple[Ask, Reply]:
            ask = read_messages(body, self._engine.settings)
            return ask, MessagesReply(ask, f"chatcmpl-{request_id}", created, self._engine.settings.model)

        return await self._generation(request, read, anthropic_error)

    async def responses(self, request: Request) -> Response:
        store = self._responses()

        def read(body: Any, _: str, created: int) -> tuple[Ask, Reply]:
            own = self._engine.settings
            asked, messages, ask = read_responses(body, own, store)
            response_id = asked.request_id or f"resp_{uuid4().hex[:16]}"
            kept = store if own.store else None
            return ask, ResponsesReply(asked, messages, ask, response_id, created, own.model, kept)

        return await self._generation(request, read)

    async def response(self, request: Request) -> Response:
        response_id = request.path_params["id"]
        found = self._responses().get(response_id)
        return _error(not_found(response_id)) if found is None else json_reply(found[1])

    async def cancel(self, request: Request) -> Response:
        response_id = request.path_params["id"]
        if response_id not in self._responses():
            return _error(not_found(response_id))
        kind = "invalid_request_error"
        return _error(
            BadRequestError("Cannot cancel a synchronous response.", param="response_id", kind=kind)
        )

    async def count_tokens(self, request: Request) -> Response:
        try:
            ask = read_messages({**await _body(request), "max_tokens": 1}, self._engine.settings)
        except BadRequestError as error:
            return _error(error, anthropic_error)
        return json_reply({"input_tokens": len(ask.prompt)})

    def _responses(self) -> Store:
        """What this life of the engine has stored."""
        if self._stored_in != self._engine.epoch:
            self._stored_in, self._stored = self._engine.epoch, {}
        return self._stored

    async def models(self, request: Request) -> Response:
        own = self._engine.settings
        card = {"id": own.model, "object": "model", "owned_by": "vllm", "max_model_len": own.max_model_len}
        return json_reply({"object": "list", "data": [card]})

    async def tokenize(self, request: Request) -> Response:
        try:
            ids = read_tokenize(await _body(request), self._engine.settings)
        except BadRequestError as error:
            return _error(error)
        limit = self._engine.settings.max_model_len
        return json_reply({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    async def detokenize(self, request: Request) -> Response:
        body = await _body(request)
        return json_reply({"prompt": Tokenizer(drift=self._engine.settings.drift).decode(body["tokens"])})

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
        return json_reply(msgspec.to_builtins(self._engine.lease(asked)))

    async def info(self, request: Request) -> Response:
        return json_reply(msgspec.to_builtins(self._engine.info()))

    async def forget(self, request: Request) -> Response:
        return json_reply({"success": self._engine.forget()})

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
        return json_reply({"waiting": len(self._engine.faults)})

    async def books(self, request: Request) -> Response:
        engine = self._engine
        return json_reply(
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

    async def _generation(self, request: Request, read: Read, refuse: Refuse = openai_error) -> Response:
        engine = self._engine
        body: Any = None
        try:
            body = await _body(request)
            self._record(request, body)
            request_id = request.headers.get("x-request-id") or uuid4().hex
            ask, reply = read(body, request_id, int(time.time()))
        except BadRequestError as error:
            handle = body.get("kv_transfer_params") if isinstance(body, dict) else None
            engine.refuse(handle if isinstance(handle, dict) else None)
            return _error(error, refuse)
        told = engine.settings.antiphon and request.headers.get(PROTOCOL_HEADER) is not None
        leg = request.headers.get("x-request-id", "") if told else None
        return Generation(engine, ask, reply, reply.request_id, leg=leg)


async def _body(request: Request) -> Any:
    try:
        return orjson.loads(await request.body())
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error


def _error(error: BadRequestError, refuse: Refuse = openai_error) -> Response:
    return json_reply(refuse(error.status, error.message, error.kind, error.param), error.status)
