"""The wrapped client: same object, same type to ``isinstance``, one hook more.

The hook is ``_prepare_options``, which openai runs on every attempt of every request, with the same
``idempotency_key`` on each retry. It lives in a subclass with a single base (the layout allows no second), so
it survives ``with_options()`` and leaves streams, responses and other libraries' patches alone.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import openai
from openai._models import FinalRequestOptions

from antiphon import ClientError, Conversation, Router, Wire, current, stamp, wire_of
from antiphon._calls import api_of_model_call, is_vendor

Client = TypeVar("Client", bound=openai.OpenAI | openai.AsyncOpenAI)

_RETRY_PREFIX = "stainless-python-retry-"
_CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key"})


@dataclass(frozen=True, slots=True)
class _Binding:
    """What one wrapped client was told: None leaves it to the surrounding code and to the call's host."""

    conversation: Conversation | None = None
    wire: Wire | None = None


def wrap(
    client: Client, *, conversation: Conversation | None = None, wire: Wire | str | None = None
) -> Client:
    """Stamp every model call of this client, in place; returns the same object. Wrapping twice is harmless.

    Stamped are chat completions, completions, responses and messages, however they are called: plain,
    streamed, parsed, raw, or by ``client.post``. Retries carry the same turn id. Values that the caller sets
    win. Without a conversation nothing is stamped.

    ``conversation``: the one of all calls of this client; None takes the one that surrounds each call.
    ``wire``: names to stamp with, an ``antiphon.Wire`` or a preset's name; None is ``Wire.default``, except
    that calls to public vendors (api.openai.com, Azure OpenAI, ...) then stay as they are: these are no
    routers, answer HTTP 400 to body fields that they do not know, and ids are none of their business. A wire
    given here is obeyed towards any host; only ends are never told to a vendor.

    Raises:
        ClientError: not an OpenAI or AsyncOpenAI client.
        WireError: no preset has this name.
    """
    if not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        raise ClientError(
            f"cannot wrap a {type(client).__qualname__}: pass the OpenAI or AsyncOpenAI client inside it"
        )
    given = wire_of(wire) if wire is not None else None
    before = _binding_of(client)
    binding = _Binding(conversation or before.conversation, given or before.wire)
    if not _is_wrapped(type(client)):
        kind: Any = type(client)
        client.__class__ = _wrapped_class(kind)
    _bind(client, binding)
    return client


def unwrap(client: Client) -> Client:
    """Undo :func:`wrap` in place; returns the same object. Copies made by ``with_options()`` stay wrapped.

    Raises:
        ClientError: another library has made a subclass on top of ours, so it must be undone first.
    """
    if not _is_wrapped(type(client)):
        return client
    if "_antiphon_base" not in vars(type(client)):
        raise ClientError(
            f"cannot unwrap this {type(client).__qualname__}: undo the class derived after wrap() first"
        )
    base: type[Any] = vars(type(client))["_antiphon_base"]
    client.__class__ = base
    vars(client).pop("_antiphon", None)
    return client


def _is_wrapped(kind: type[Any]) -> bool:
    return hasattr(kind, "_antiphon_base")


def _binding_of(client: Any) -> _Binding:
    return vars(client).get("_antiphon") or _Binding()


def _bind(client: Any, binding: _Binding) -> None:
    client._antiphon = binding


@functools.cache
def _wrapped_class(base: type[Any]) -> type[Any]:
    def prepare(self: Any, options: FinalRequestOptions) -> FinalRequestOptions:
        return _stamped(self, base._prepare_options(self, options))

    async def aprepare(self: Any, options: FinalRequestOptions) -> FinalRequestOptions:
        return _stamped(self, await base._prepare_options(self, options))

    def copying(name: str) -> Any:
        @functools.wraps(getattr(base, name))
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            copied = getattr(base, name)(self, *args, **kwargs)
            _bind(copied, _binding_of(self))
            return copied

        return copy

    hooks = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_antiphon_base": base,
        "_prepare_options": aprepare if issubclass(base, openai.AsyncOpenAI) else prepare,
        "copy": copying("copy"),
        "with_options": copying("with_options"),
    }
    return type(base.__name__, (base,), hooks)


def _stamped(client: Any, options: FinalRequestOptions) -> FinalRequestOptions:
    """The options with the stamp of the call's conversation. Mappings are replaced, never changed."""
    binding = _binding_of(client)
    conversation = binding.conversation or current()
    if conversation is None:
        return options
    url = client._prepare_url(options.url)
    api = api_of_model_call(options.method, str(url))
    vendor = is_vendor(url.host)
    if api is None or (vendor and binding.wire is None):
        return options

    wire = binding.wire or Wire.default
    headers: Mapping[str, Any] = options.headers if isinstance(options.headers, Mapping) else {}
    sent = options.json_data if isinstance(options.json_data, Mapping) and not options.files else None
    extra: Mapping[str, Any] = options.extra_json or {}
    addition = stamp(
        conversation,
        turn=(options.idempotency_key or "").removeprefix(_RETRY_PREFIX),
        wire=wire,
        headers=(*client._custom_headers, *headers),
        body=(*(sent or ()), *extra),
    )
    if wire.ends and not vendor:  # there, DELETE /conversations is something else
        conversation.seen_by(_router(client, options, api, wire))
    options.headers = {**headers, **addition.headers}
    if sent is not None and addition.body:
        options.extra_json = {**extra, **addition.body}
    return options


def _router(client: Any, options: FinalRequestOptions, api: str, wire: Wire) -> Router:
    """The server of this call, with the credentials that it was given."""
    static = {name.lower() for name in client._custom_headers}
    headers = tuple(
        (name, value)
        for name, value in client._build_headers(options).items()
        if name.lower() in _CREDENTIALS or name.lower() in static
    )
    return Router(api, headers, weakref.ref(client._client), wire.final_header)
