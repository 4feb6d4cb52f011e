"""Endpoints that one engine answers and the router passes on, errors included."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response as Reply
from starlette.responses import StreamingResponse
from starlette.routing import Route

from antiphon_server.router.errors import EngineFailedError, KeyRefusedError, NotFoundError, UnavailableError
from antiphon_server.router.fleet.worker import Role
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.gate.gate import caller_of
from antiphon_server.router.legs import strip
from antiphon_server.router.state import State
from antiphon_server.router.surfaces.response_search import holder_of
from antiphon_server.router.surfaces.responses import not_found
from antiphon_server.router.turn.endpoint import read_body
from antiphon_server.router.turn.relay import Relay
from antiphon_server.router.upstream.connection import UpstreamError
from antiphon_server.router.upstream.upstream import Response

_QUERY = ("stream", "starting_after")
_GONE = 499
"""The client left: nobody reads this."""


@dataclass(frozen=True, slots=True)
class Passed:
    """``role``: whose engines are asked first; those of the other role know it as well."""

    path: str
    method: str
    role: Role


PASSED = (
    Passed("/v1/models", "GET", "decode"),
    Passed("/tokenize", "POST", "prefill"),
    Passed("/detokenize", "POST", "prefill"),
    Passed("/v1/embeddings", "POST", "prefill"),
    Passed("/v1/messages/count_tokens", "POST", "prefill"),
)


class Passage:
    """Asks engines with the router's key, never with the client's, and hands their answers on."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """All endpoints of this module."""
        return [
            *(Route(one.path, self._endpoint(one), methods=[one.method]) for one in PASSED),
            Route("/v1/models/{id:path}", self.model, methods=["GET"]),
            Route("/v1/responses/{id}", self.response, methods=["GET"]),
            Route("/v1/responses/{id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def model(self, request: Request) -> Reply:
        """One card of the list: engines have no such path."""
        reply = await self._whole(self._any("decode"), "GET", "/v1/models", b"")
        if reply.status_code != 200:
            return reply
        wanted = request.path_params["id"]
        listed = msgspec.json.decode(bytes(reply.body)).get("data", [])
        card = next((one for one in listed if one.get("id") == wanted), None)
        if card is None:
            raise NotFoundError(f"The model `{wanted[:128]}` does not exist.")
        return Reply(msgspec.json.encode(card), media_type="application/json")

    async def response(self, request: Request) -> Reply:
        """A stored response, or its events, from the engine that has it."""
        return await self._stored(request, "GET", "")

    async def cancel(self, request: Request) -> Reply:
        """Stop a response in the background."""
        return await self._stored(request, "POST", "/cancel")

    def _endpoint(self, one: Passed) -> Callable[[Request], Awaitable[Reply]]:
        async def endpoint(request: Request) -> Reply:
            if one.method == "GET":
                return await self._whole(self._any(one.role), one.method, one.path, b"")
            settings = self._state.settings
            # Engines work on these as they do on turns, and bodies are as large.
            async with self._state.admission.admit(caller_of(request.scope).tenant):
                body = await read_body(
                    request.receive, request.headers, settings.max_body, timeout=settings.body_timeout
                )
                if body is None:
                    return Reply(status_code=_GONE)
                return await self._whole(self._any(one.role), one.method, one.path, body)

        return endpoint

    async def _stored(self, request: Request, method: str, more: str) -> Reply:
        response_id = request.path_params["id"]
        self._state.responses.check(caller_of(request.scope).tenant.name, response_id)
        holder = await holder_of(self._state, response_id)
        if holder is None:
            raise not_found(response_id)
        query = {name: value for name, value in request.query_params.items() if name in _QUERY}
        path = f"/v1/responses/{response_id}{more}" + (f"?{urlencode(query)}" if query else "")
        _, response = await self._send([holder], method, path, b"")
        if (response.header(b"content-type") or b"").startswith(b"text/event-stream"):
            return _streamed(response)
        reply = await self._read(response, holder)
        body, _ = strip(bytes(reply.body), token_ids=False)
        return Reply(body, reply.status_code, media_type=reply.media_type)

    def _any(self, role: Role) -> list[Worker]:
        """Engines to ask, one after the other: two of the role, then one of the other."""
        other: Role = "decode" if role == "prefill" else "prefill"
        found: list[Worker] = []
        for one in (role, role, other):
            avoid = [worker.name for worker in found]
            worker = self._state.placement.any_of(self._state.workers.of(one), avoid)
            if worker is not None and worker not in found:
                found.append(worker)
        if not found:
            raise UnavailableError(f"no {role} engine is up: try again soon")
        return found

    async def _whole(self, workers: Sequence[Worker], method: str, path: str, body: bytes) -> Reply:
        worker, response = await self._send(workers, method, path, body)
        return await self._read(response, worker)

    async def _send(
        self, workers: Sequence[Worker], method: str, path: str, body: bytes
    ) -> tuple[Worker, Response]:
        for worker in workers:
            headers = (("Content-Type", "application/json"), *worker.headers, *self._state.engine_headers)
            try:
                response = await self._state.upstream.send(
                    worker.origin, method, path, headers=headers, body=body, repeat=True
                )
            except UpstreamError:
                self._state.workers.suspect(worker)
                continue
            if response.status in {401, 403}:
                response.close()
                raise KeyRefusedError(worker.role)
            return worker, response
        raise EngineFailedError(f"no engine answered {path.partition('?')[0]}")

    async def _read(self, response: Response, worker: Worker) -> Reply:
        try:
            content = await response.read(self._state.settings.max_reply)
        except UpstreamError as error:
            self._state.workers.suspect(worker)
            raise EngineFailedError(f"the {worker.role} engine broke off") from error
        finally:
            response.close()
        kind = (response.header(b"content-type") or b"application/json").decode("latin-1")
        retry = response.header(b"retry-after")
        headers = {} if retry is None else {"retry-after": retry.decode("latin-1")}
        return Reply(content, response.status, headers, media_type=kind)


def _streamed(response: Response) -> Reply:
    async def events() -> AsyncIterator[bytes]:
        relay = Relay(token_ids=False, surface="responses")
        try:
            while (chunk := await response.chunk()) is not None:
                if data := relay.feed(chunk):
                    yield data
            yield relay.finish()
        except UpstreamError as error:
            yield relay.broken(EngineFailedError(f"the decode engine broke off: {type(error).__name__}"))
        finally:
            response.close()

    kind = (response.header(b"content-type") or b"").decode("latin-1")
    return StreamingResponse(events(), response.status, {"cache-control": "no-cache"}, media_type=kind)
