"""In front of all routes: whether a request may come in, and whose it is."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.errors import BadRequestError, RouterError, UnauthorizedError
from antiphon_server.router.gate.bounds import check_head
from antiphon_server.router.gate.tenants import CREDENTIALS, Tenant
from antiphon_server.router.state import State
from antiphon_server.router.turn.reply import Reply

OPEN = frozenset({"/health", "/ready"})
"""Asked by those who have no key. All other paths, unknown ones too, need one where keys are configured."""
_METRICS = "/metrics"
_ADMIN = "/admin/"
"""Has a key of its own."""
_CALLER = "antiphon.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and its headers with lower-case names."""

    tenant: Tenant
    headers: Mapping[str, str]


def caller_of(scope: Scope) -> Caller:
    """As :class:`Gate` found."""
    caller: Caller = scope[_CALLER]
    return caller


class Gate:
    """Middleware. What it refuses never reaches a route, so a new route is guarded without being told."""

    def __init__(self, app: ASGIApp, state: State) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._let_in(scope, self._state.settings)
            except RouterError as error:
                self._state.metrics.refused.labels(error.kind).inc()
                await refuse(Reply(send), error, scope["path"])
                return
        await self._app(scope, receive, send)

    def _let_in(self, scope: Scope, settings: RouterSettings) -> None:
        check_head(scope, settings)
        path = scope["path"]
        if path in OPEN or path.startswith(_ADMIN):
            return
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:
            name = raw_name.decode("latin-1")
            if name in CREDENTIALS and name in headers:
                raise BadRequestError(
                    f"header {name} is there twice, so who calls is not clear: send it once"
                )
            headers[name] = raw_value.decode("latin-1")
        if path == _METRICS:
            _check_metrics_key(headers, settings)
            return
        scope[_CALLER] = Caller(self._state.tenants.of(headers), headers)


async def refuse(reply: Reply, error: RouterError, path: str) -> None:
    """Tell the client, in the shape that the path's API has."""
    headers = [*error.headers, ("content-type", "application/json")]
    await reply.whole(error.status, headers, error.body(anthropic=path.startswith("/v1/messages")))


def _check_metrics_key(headers: Mapping[str, str], settings: RouterSettings) -> None:
    key = settings.metrics_key
    if key is None:
        return
    expected = f"Bearer {key.get_secret_value()}".encode()
    if not hmac.compare_digest(headers.get("authorization", "").encode("latin-1"), expected):
        raise UnauthorizedError("/metrics needs the metrics key: send it as `Authorization: Bearer KEY`")
