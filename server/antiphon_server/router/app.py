"""The router as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.drain import DrainGate
from antiphon_server.router.errors import RouterError, anthropic_error_body, error_body
from antiphon_server.router.gate.gate import Gate
from antiphon_server.router.gate.line import take_line
from antiphon_server.router.plan.calibration import Calibration
from antiphon_server.router.state import State
from antiphon_server.router.store.frontier import FrontierStore
from antiphon_server.router.surfaces.admin import Admin
from antiphon_server.router.surfaces.passage import Passage
from antiphon_server.router.surfaces.path_id import CONVERSATION_PATH
from antiphon_server.router.surfaces.surfaces import ConversationRoutes, Probes
from antiphon_server.router.turn.endpoint import TurnEndpoint
from antiphon_server.router.turn.turn import PATHS, Turns

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
        measuring = asyncio.create_task(calibration.run()) if settings.calibrate and settings.keeps else None
        try:
            yield
        finally:
            if measuring is not None:
                measuring.cancel()
                await asyncio.gather(measuring, return_exceptions=True)
            await state.stop()

    turns = Turns(state)
    calibration = Calibration(state, turns)
    probes = Probes(state)
    conversations = ConversationRoutes(state)
    endpoints = {path: TurnEndpoint(turns, state, surface) for surface, path in PATHS.items()}
    app = RouterApp(
        lifespan=lifespan,
        middleware=[Middleware(DrainGate, drain=state.drain), Middleware(Gate, state=state)],
        routes=[
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
            *Passage(state).routes(),
            Route(CONVERSATION_PATH, conversations.end, methods=["DELETE"]),
            Route(CONVERSATION_PATH, conversations.describe, methods=["GET"]),
            Route("/health", probes.health, methods=["GET"]),
            Route("/ready", probes.ready, methods=["GET"]),
            Route("/metrics", probes.metrics, methods=["GET"]),
            *Admin(state).routes(),
        ],
        exception_handlers={RouterError: _router_error, 404: _not_found, 405: _not_found},
    )
    app.state.router = state
    app.turns = {path: DrainGate(Gate(turn, state), state.drain) for path, turn in endpoints.items()}
    return app


class RouterApp(Starlette):
    """Turns go to their endpoints at once, by path: they raise nothing, and Starlette's routes and net for
    errors cost each request and each chunk of a reply."""

    turns: Mapping[str, ASGIApp]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        turn = scope["type"] == "http" and scope["method"] == "POST"
        endpoint = self.turns.get(scope["path"]) if turn else None
        if endpoint is None and (line := take_line(scope)) is not None:
            line.let_go()
        await (endpoint or super().__call__)(scope, receive, send)


async def _router_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RouterError)
    anthropic = request.url.path.startswith("/v1/messages")
    return Response(
        error.body(anthropic=anthropic), error.status, dict(error.headers), media_type="application/json"
    )


def _meant(request: Request) -> str:
    """Where a base URL has lost its ``/v1``, or has it twice, the path that is served."""
    path = request.url.path
    for other in (f"/v1{path}", path.removeprefix("/v1")):
        routes = (route for route in request.app.routes if isinstance(route, Route))
        if other != path and any(route.path_regex.match(other) for route in routes):
            return f", but {other} is: mend the base URL"
    return ""


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"{request.method} {request.url.path} is not served here{_meant(request)}"
    word = anthropic_error_body if request.url.path.startswith("/v1/messages") else error_body
    return Response(word(message, "invalid_request_error", status), status, media_type="application/json")
