"""The wrapped client: same object, same type to ``isinstance``, two hooks more.

openai runs ``_prepare_options`` on every attempt of every request, with the same ``idempotency_key`` on each
retry: it stamps. It hands every reply that succeeded to ``_process_response``, which observes; a version of
openai without it is stamped all the same. Both live in a subclass with a single base (the layout allows no
second), so they survive ``with_options()`` and leave streams, responses and other libraries' patches alone.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, TypeVar

import openai

from antiphon import ClientError, Conversation, Wire
from antiphon._binding import Binding
from antiphon_openai._attempt import stamped
from antiphon_openai._reply import observed

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

Client = TypeVar("Client", bound=openai.OpenAI | openai.AsyncOpenAI)


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

    A call whose ``conversation_id`` or session header the caller sets, or omits with ``openai.Omit()``, keeps
    it so, and is not observed. ``AzureOpenAI`` towards a gateway of yours: ends go to
    ``<azure_endpoint>/openai/conversations/<id>``, without deployment and API version. Not covered are the
    module-level client (``openai.chat``) and realtime connections.

    Raises:
        ClientError: not an OpenAI or AsyncOpenAI client.
        WireError: no preset has this name.
    """
    if not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        raise ClientError(
            f"cannot wrap a {type(client).__qualname__}: pass the OpenAI or AsyncOpenAI client inside it; "
            "clients of httpx go to antiphon.hook(), LangChain takes antiphon_langgraph.chat_openai()"
        )
    binding = _binding_of(client).rebound(conversation, wire)
    kind: Any = type(client)  # read once: another thread may be wrapping it too
    if not _is_wrapped(kind):
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


def _binding_of(client: Any) -> Binding:
    return vars(client).get("_antiphon") or Binding()


def _bind(client: Any, binding: Binding) -> None:
    client._antiphon = binding


@functools.cache
def _wrapped_class(base: type[Any]) -> type[Any]:
    def prepare(self: Any, options: FinalRequestOptions) -> FinalRequestOptions:
        options = base._prepare_options(self, options)
        return stamped(self, _binding_of(self), options, time.perf_counter())

    async def aprepare(self: Any, options: FinalRequestOptions) -> FinalRequestOptions:
        options = await base._prepare_options(self, options)
        return stamped(self, _binding_of(self), options, time.perf_counter())

    def process(self: Any, *args: Any, **kwargs: Any) -> Any:  # async clients: a coroutine
        observed(kwargs, time.perf_counter())
        return base._process_response(self, *args, **kwargs)

    def copying(name: str) -> Any:
        @functools.wraps(getattr(base, name))
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            copied = getattr(base, name)(self, *args, **kwargs)
            _bind(copied, _binding_of(self))
            return copied

        return copy

    hooks: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_antiphon_base": base,
        "_prepare_options": aprepare if issubclass(base, openai.AsyncOpenAI) else prepare,
        "copy": copying("copy"),
        "with_options": copying("with_options"),
    }
    if hasattr(base, "_process_response"):
        hooks["_process_response"] = process
    return type(base.__name__, (base,), hooks)
