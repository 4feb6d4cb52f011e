"""The router as an ASGI application."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon_server.router.endpoint import TurnEndpoint
from antiphon_server.router.errors import RouterError, error_body
from antiphon_server.router.frontier import FrontierStore
from antiphon_server.router.settings import RouterSettings
from antiphon_server.router.state import State
from antiphon_server.router.surfaces import ConversationRoutes, Probes, Proxied
from antiphon_server.router.turn import PATHS, Turns

__all__ = ["create_app"]


def create_app(
    settings: RouterSettings,
    *,
    store: FrontierStore | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """The router over the engines that ``settings`` name. ``store``: in memory unless given. ``clock``:
    monotonic."""
    state = State(settings, store=store, clock=clock)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await state.start()
        try:
            yield
        finally:
            await state.stop()

    turns = Turns(state)
    probes = Probes(state)
    conversations = ConversationRoutes(state)
    proxied = Proxied(state)
    app = Starlette(
        lifespan=lifespan,
        routes=[
            *(
                Route(path, TurnEndpoint(turns, settings, surface, state.tenants), methods=["POST"])
                for surface, path in PATHS.items()
            ),
            Route("/v1/models", proxied.models, methods=["GET"]),
            Route("/tokenize", proxied.tokenize, methods=["POST"]),
            Route("/v1/conversations/{id:path}", conversations.end, methods=["DELETE"]),
            Route("/v1/conversations/{id:path}", conversations.describe, methods=["GET"]),
            Route("/health", probes.health, methods=["GET"]),
            Route("/ready", probes.ready, methods=["GET"]),
            Route("/metrics", probes.metrics, methods=["GET"]),
        ],
        exception_handlers={RouterError: _router_error, 404: _not_found, 405: _not_found},
    )
    app.state.router = state
    return app


async def _router_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RouterError)
    return Response(error.body(), error.status, dict(error.headers), media_type="application/json")


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path} is not served here"
    return Response(
        error_body(message, "invalid_request_error", status), status, media_type="application/json"
    )
