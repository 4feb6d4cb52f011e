"""ASGI middleware of vLLM's API server (``--middleware``): ``/antiphon/*`` and handles on streams."""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from antiphon_server.engine import info, stream
from antiphon_server.protocol import INFO_PATH, LEASES_PATH, PROTOCOL_HEADER, Info, LeaseRequest

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = stream.Send

BODY_LIMIT = 4 * 1024 * 1024
_HEADER = PROTOCOL_HEADER.lower().encode("ascii")
_LEG = b"x-request-id"


class AntiphonMiddleware:
    """Pure ASGI. Requests without the protocol header, outside ``/antiphon/``, pass untouched."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._info: Info | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] in (INFO_PATH, LEASES_PATH):
            status, body = await self._answer(scope, receive)
            await _reply(send, status, body)
        else:
            if any(name == _HEADER for name, _ in scope["headers"]):
                stream.watch(scope["app"].state.engine_client)
                leg = next((value for name, value in scope["headers"] if name == _LEG), None)
                send = stream.with_notes(send, leg)
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, Any]:
        state = scope["app"].state
        method = "GET" if scope["path"] == INFO_PATH else "POST"
        if scope["method"] != method:
            return 405, {"error": f"{scope['path']} answers {method}, not {scope['method']}"}
        if not _authorised(scope, _keys(state.args)):
            return 401, {"error": "this engine has an API key: send it as Authorization: Bearer <key>"}
        if method == "GET":
            if self._info is None:
                served = state.args.served_model_name or [state.args.model]
                self._info = await info.describe(state.engine_client, state.vllm_config, served[0])
            return 200, self._info
        try:
            request = msgspec.json.decode(await _body(receive), type=LeaseRequest)
        except (msgspec.DecodeError, ValueError) as error:
            return 400, {"error": f"body of {LEASES_PATH}: {error}"}
        return 200, await info.move_leases(state.engine_client, request)


def _keys(args: Any) -> list[str]:
    """The engine's keys, from where vLLM takes them itself."""
    keys = args.api_key or []
    keys = [keys] if isinstance(keys, str) else list(keys)
    return [key for key in (*keys, os.environ.get("VLLM_API_KEY")) if key]


def _authorised(scope: Scope, keys: Iterable[str]) -> bool:
    keys = list(keys)
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    return not keys or any(hmac.compare_digest(given, b"Bearer " + key.encode()) for key in keys)


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        chunk: bytes = message.get("body", b"")
        body += chunk
        if len(body) > BODY_LIMIT:
            raise ValueError(f"more than {BODY_LIMIT} bytes; send fewer leases at once")
        if not message.get("more_body"):
            return body


async def _reply(send: Send, status: int, body: Any) -> None:
    content = msgspec.json.encode(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
