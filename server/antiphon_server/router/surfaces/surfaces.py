"""The router's own endpoints besides turns: conversations, health and metrics."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from antiphon_server.router.errors import NotFoundError
from antiphon_server.router.gate.gate import caller_of
from antiphon_server.router.state import State
from antiphon_server.router.surfaces.path_id import conversation_in


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
        return caller_of(request.scope).tenant.name, conversation_in(request)


class Probes:
    """Health, readiness and metrics of the router itself."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def health(self, request: Request) -> Response:
        """The process serves."""
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def ready(self, request: Request) -> Response:
        """200 while turns can be served, 503 otherwise and while the router drains; and which engines there
        are."""
        workers = self._state.workers
        draining = self._state.drain.begun
        ready = workers.ready and not draining
        body = {
            "ready": ready,
            "status": "draining" if draining else "ready" if ready else "waiting",
            "store": "degraded" if self._state.store.degraded else "ok",
            **{
                role: {
                    "healthy": sum(worker.healthy for worker in group),
                    "reuse": sum(worker.healthy and worker.reuse for worker in group),
                    "named": len(group),
                }
                for role, group in (("prefill", workers.prefill), ("decode", workers.decode))
            },
        }
        return Response(msgspec.json.encode(body), 200 if ready else 503, media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        metrics, store, workers = self._state.metrics, self._state.store, self._state.workers
        metrics.frontiers.set(len(await store.held()))
        metrics.fleet(workers, self._state.placement.pairs, self._state.clock())
        metrics.measured(self._state.rates)
        kept = {worker: await store.tokens(worker.name) for worker in workers.decode}
        metrics.keeping(kept, self._state.rooms)
        return Response(metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _unknown(conversation: str) -> NotFoundError:
    return NotFoundError(
        f"conversation {conversation!r} is not known here: it ended, was evicted, or never began"
    )
