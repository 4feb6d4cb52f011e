"""Event hooks for the HTTP client of a framework that takes no model client from outside."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from antiphon._binding import Binding, Call
from antiphon._body import body_of
from antiphon._conversation import Conversation
from antiphon._errors import ClientError, WireError
from antiphon._identity import turn_of_key
from antiphon._observe import Exchange, observe
from antiphon._router import Router
from antiphon._stamp import IDENTITY_FIELDS, stamp
from antiphon._telemetry import announce
from antiphon._wire import Wire

_EXTENSION = "antiphon"
_RETRY_COUNT = "x-stainless-retry-count"
_LIBRARY_HEADERS = frozenset({"accept", "accept-encoding", "connection", "user-agent"})


class HttpClient(Protocol):
    """``Client`` and ``AsyncClient`` of httpx and of httpx2."""

    event_hooks: dict[str, list[Callable[..., Any]]]


Client = TypeVar("Client", bound=HttpClient)


def hook(
    client: Client, *, conversation: Conversation | None = None, wire: Wire | str | None = None
) -> Client:
    """Stamp every model call that this HTTP client sends, in place; returns the same object.

    For frameworks that take an ``http_client`` and nothing more. Where an OpenAI client can be given, wrap
    that instead: it stamps bodies too. Hooking twice is harmless, and so is hooking the HTTP client of a
    wrapped one: a request with a turn id is left as it is.

    Headers alone are added, for the body is encoded by then. Values that the caller sets win, be it in a
    header or in a JSON body. ``conversation`` and ``wire`` as in ``antiphon_openai.wrap``: public vendors get
    nothing unless a wire is given. Redirects and authentication repeat the request with the turn id that it
    has. So does a retry of a client that counts them in ``x-stainless-retry-count``, as OpenAI's and
    Anthropic's do, or repeats an ``Idempotency-Key``; any other retry is a turn of its own.

    Raises:
        ClientError: not a client of httpx or httpx2.
        WireError: no preset has this name, or the wire names conversations by a body field alone.
    """
    asynchronous = _is_async(client)
    binding = _binding_of(client).rebound(conversation, wire)
    if binding.wire is not None and binding.wire.conversation_header is None:
        raise WireError(
            f"{binding.wire} has no conversation_header: a hook cannot write into bodies, name one"
        )
    unhook(client)
    hooks = _Hooks(weakref.ref(client), binding)
    events = client.event_hooks
    client.event_hooks = {
        "request": [*events["request"], hooks.abefore if asynchronous else hooks.before],
        "response": [*events["response"], hooks.aafter if asynchronous else hooks.after],
    }
    return client


def unhook(client: Client) -> Client:
    """Undo :func:`hook` in place; returns the same object. Harmless where nothing is to undo.

    Raises:
        ClientError: not a client of httpx or httpx2.
    """
    _is_async(client)
    client.event_hooks = {
        kind: [each for each in hooks if _owner(each) is None] for kind, hooks in client.event_hooks.items()
    }
    return client


def _is_async(client: object) -> bool:
    """Known by name, so that neither library is imported.

    Raises:
        ClientError: not a client of httpx or httpx2.
    """
    for kind in type(client).__mro__:
        if kind.__module__.partition(".")[0] in ("httpx", "httpx2") and kind.__name__.endswith("Client"):
            return kind.__name__ == "AsyncClient"
    raise ClientError(
        f"cannot hook a {type(client).__qualname__}: pass the client of httpx or httpx2 that it sends with; "
        "clients of openai go to antiphon_openai.wrap()"
    )


@dataclass(frozen=True, slots=True)
class _Sent:
    """A stamped request, noted in its extensions: these outlive redirects. ``started``: seconds."""

    conversation: Conversation
    turn: str | None
    started: float


@dataclass(frozen=True, slots=True)
class _Hooks:
    client: weakref.ref[Any]
    binding: Binding

    def before(self, request: Any) -> None:
        call = self.binding.call(request.method, str(request.url), request.url.host)
        if call is None or _turn_headers(call.wire) & {name.lower() for name in request.headers}:
            return
        content = body_of(request)
        addition = stamp(
            call.conversation,
            turn=_turn(request, call),
            wire=call.wire,
            headers=request.headers,
            body=_fields(content or b"", IDENTITY_FIELDS | {call.wire.conversation_field}),
        )
        client = self.client()  # gone only where its hooks were given to another client, which is sending now
        if call.ends and client is not None:
            call.conversation.seen_by(
                Router.of(
                    call.api,
                    request.headers,
                    standing=set(client.headers) - _LIBRARY_HEADERS,
                    transport=client,
                    final_header=call.wire.final_header,
                )
            )
        request.headers.update(addition.headers)
        turn = addition.headers.get(call.wire.turn_header or "")
        _last_turn.set((call.conversation.id, str(request.url), turn))
        if addition.identifies:
            announce(call.conversation)
            sent = _Sent(call.conversation, turn, time.perf_counter())
            request.extensions = {**request.extensions, _EXTENSION: sent}

    def after(self, response: Any) -> None:
        sent = response.request.extensions.get(_EXTENSION)
        if not isinstance(sent, _Sent) or not response.is_success:
            return
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        observe(
            sent.conversation,
            Exchange(
                turn=sent.turn,
                headers=response.headers,
                request=body_of(response.request),
                ttft=time.perf_counter() - sent.started if streamed else None,
            ),
        )

    async def abefore(self, request: Any) -> None:
        self.before(request)

    async def aafter(self, response: Any) -> None:
        self.after(response)


_last_turn: ContextVar[tuple[str, str, str | None]] = ContextVar("antiphon_last_turn", default=("", "", None))
"""Conversation, URL and turn id of what this context sent last: a retry follows its first try directly."""


def _turn(request: Any, call: Call) -> str | None:
    """The turn id of the first try; None: this is one, or the request does not tell."""
    key: str | None = request.headers.get("idempotency-key")
    if key:
        return turn_of_key(key)
    *last, turn = _last_turn.get()
    is_retry = request.headers.get(_RETRY_COUNT, "0") != "0"
    return turn if is_retry and last == [call.conversation.id, str(request.url)] else None


def _turn_headers(wire: Wire) -> set[str]:
    return {name.lower() for name in (wire.turn_header, Wire.default.turn_header) if name}


def _fields(content: bytes, names: Iterable[str | None]) -> Iterable[str]:
    """The fields of a JSON body, looked for only where one of the names is anywhere in it."""
    if not any(f'"{name}"'.encode() in content for name in names):
        return ()
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return ()
    return body if isinstance(body, dict) else ()


def _owner(event_hook: object) -> _Hooks | None:
    owner = getattr(event_hook, "__self__", None)
    return owner if isinstance(owner, _Hooks) else None


def _binding_of(client: HttpClient) -> Binding:
    owners = [owner for owner in map(_owner, client.event_hooks["request"]) if owner]
    return owners[0].binding if owners else Binding()
