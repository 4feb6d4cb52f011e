"""The router's endpoints besides turns: what one engine answers, conversations, health and metrics."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon_server.router.connection import UpstreamError
from antiphon_server.router.endpoint import read_body
from antiphon_server.router.errors import EngineFailedError, KeyRefusedError, NotFoundError, UnavailableError
from antiphon_server.router.identity import clean_id
from antiphon_server.router.state import State
from antiphon_server.router.workers import Worker


class Proxied:
    """Endpoints that one engine answers."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def models(self, request: Request) -> Response:
        """What decode serves."""
        return await self._ask(self._state.workers.decode, "decode", "GET", "/v1/models", b"")

    async def tokenize(self, request: Request) -> Response:
        """Prefill's tokenizer."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await read_body(request.receive, headers, self._state.settings.max_body)
        return await self._ask(self._state.workers.prefill, "prefill", "POST", "/tokenize", body or b"")

    async def _ask(self, workers: list[Worker], role: str, method: str, path: str, body: bytes) -> Response:
        worker = self._state.placement.choose(workers, None)
        if worker is None:
            raise UnavailableError(f"no {role} engine is up: try again soon")
        headers = (("Content-Type", "application/json"), *self._state.engine_headers)
        try:
            response = await self._state.upstream.send(
                worker.origin, method, path, headers=headers, body=body, repeat=True
            )
            try:
                content = await response.read(self._state.settings.max_reply)
            finally:
                response.close()
        except UpstreamError as error:
            self._state.workers.suspect(worker)
            raise EngineFailedError(f"the {role} engine did not answer {path}") from error
        if response.status in {401, 403}:
            raise KeyRefusedError(role)
        return Response(content, response.status, media_type="application/json")


class ConversationRoutes:
    """A client's view of its conversations. Another tenant's are unknown to it."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def end(self, request: Request) -> Response:
        """End one: 204, or 404."""
        tenant, conversation = self._named(request)
        if not await self._state.conversations.close(tenant, conversation):
            raise _unknown(conversation)
        return Response(status_code=204)

    async def describe(self, request: Request) -> Response:
        """State of one."""
        tenant, conversation = self._named(request)
        state = await self._state.conversations.describe(tenant, conversation, self._state.clock())
        if state is None:
            raise _unknown(conversation)
        return Response(msgspec.json.encode(state), media_type="application/json")

    def _named(self, request: Request) -> tuple[str, str]:
        conversation = clean_id(request.path_params["id"])
        if conversation is None:
            raise NotFoundError("no conversation id in the path: use /v1/conversations/{id}")
        return self._state.tenants.of(request.headers).name, conversation


class Probes:
    """Health, readiness and metrics of the router itself."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def health(self, request: Request) -> Response:
        """The process serves."""
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready(self, request: Request) -> Response:
        """200 with at least one healthy engine of each role, 503 otherwise; and which engines those are."""
        workers = self._state.workers
        body = {
            "ready": workers.ready,
            **{
                role: {
                    "healthy": sum(worker.healthy for worker in group),
                    "reuse": sum(worker.healthy and worker.reuse for worker in group),
                    "named": len(group),
                }
                for role, group in (("prefill", workers.prefill), ("decode", workers.decode))
            },
        }
        return Response(
            msgspec.json.encode(body), 200 if workers.ready else 503, media_type="application/json"
        )

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        metrics = self._state.metrics
        metrics.frontiers.set(len(await self._state.store.held()))
        for worker in self._state.workers:
            metrics.healthy.labels(worker.role, worker.url).set(worker.healthy)
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _unknown(conversation: str) -> NotFoundError:
    return NotFoundError(
        f"conversation {conversation!r} is not known here: it ended, was evicted, or never began"
    )
