"""``/admin``: the fleet and the settings for whoever runs the router. Off without a key of its own."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon_server.router.config.explain import plain
from antiphon_server.router.errors import BadRequestError, ConflictError, NotFoundError, UnauthorizedError
from antiphon_server.router.fleet.workers import DuplicateEngineError, UnknownEngineError
from antiphon_server.router.state import State
from antiphon_server.router.turn.endpoint import read_body

log = logging.getLogger(__name__)

_LARGEST = 64 * 1024


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which engine a call is about."""

    role: Literal["prefill", "decode"]
    url: str


class Admin:
    """Calls of an administrator. Every change is logged."""

    def __init__(self, state: State) -> None:
        self._state = state

    def routes(self) -> list[Route]:
        """Every one asks for the key."""
        calls: list[tuple[str, str, Callable[[Request], Awaitable[Any]]]] = [
            ("GET", "/admin/workers", self._list),
            ("POST", "/admin/workers", self._add),
            ("DELETE", "/admin/workers", self._remove),
            ("POST", "/admin/workers/drain", self._drain),
            ("POST", "/admin/workers/undrain", self._undrain),
            ("GET", "/admin/config", self._config),
        ]
        return [Route(path, self._guarded(call), methods=[method]) for method, path, call in calls]

    def _guarded(self, call: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            self._admit(request)
            try:
                content = await call(request)
            except UnknownEngineError as error:
                raise NotFoundError(str(error)) from None
            except DuplicateEngineError as error:
                raise ConflictError(str(error)) from None
            except ValueError as error:
                raise BadRequestError(str(error)) from None
            return Response(msgspec.json.encode(content), media_type="application/json")

        return endpoint

    def _admit(self, request: Request) -> None:
        key = self._state.settings.admin_key
        if key is None:
            raise NotFoundError("the admin API is off: set ANTIPHON_ADMIN_KEY or --admin-key-file to use it")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        expected = key.get_secret_value().encode()
        # Compared even when the scheme is wrong: the time taken must not tell one case from the other.
        equal = hmac.compare_digest(given.strip().encode("latin-1"), expected)
        if not (equal and expected and scheme.lower() == "bearer"):
            source = request.client.host if request.client is not None else None
            log.warning("admin.refused", extra={"path": request.url.path, "source": source})
            raise UnauthorizedError("send the admin key as 'Authorization: Bearer <key>'")

    async def _list(self, request: Request) -> Any:
        return {"workers": self._state.workers.list()}

    async def _add(self, request: Request) -> Any:
        named = await _named(request)
        await self._state.workers.add(named.role, named.url)
        return self._done("added", named)

    async def _drain(self, request: Request) -> Any:
        named = await _named(request)
        self._state.workers.drain(named.role, named.url)
        return self._done("draining", named)

    async def _undrain(self, request: Request) -> Any:
        named = await _named(request)
        self._state.workers.undrain(named.role, named.url)
        return self._done("undrained", named)

    async def _remove(self, request: Request) -> Any:
        named = await _named(request)
        await self._state.workers.remove(named.role, named.url)
        return self._done("removed", named)

    async def _config(self, request: Request) -> Any:
        return {"settings": plain(self._state.settings)}

    def _done(self, what: str, named: _Named) -> Any:
        log.info("admin.changed", extra={"what": what, "role": named.role, "worker": named.url})
        return {"done": what, "workers": self._state.workers.list()}


async def _named(request: Request) -> _Named:
    """From the query where it names an engine (some clients send no body with DELETE), else from the body."""
    if request.query_params:
        given: Any = dict(request.query_params)
    else:
        body = await read_body(request.receive, {}, _LARGEST)
        try:
            given = msgspec.json.decode(body or b"null")
        except msgspec.DecodeError as error:
            raise BadRequestError(f"the body is not JSON: {error}") from None
    try:
        named = msgspec.convert(given, _Named)
    except msgspec.ValidationError as error:
        raise BadRequestError(
            f'name an engine as {{"role": "prefill" or "decode", "url": ...}}: {error}'
        ) from None
    return _Named(named.role, named.url.rstrip("/"))
