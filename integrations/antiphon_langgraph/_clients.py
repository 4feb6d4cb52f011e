"""The OpenAI clients inside a LangChain model, made to stamp their calls in place."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from antiphon import Conversation, Wire


def stamp_calls(model: Runnable[Any, Any]) -> None:
    """Make each ``ChatOpenAI`` and ``AzureChatOpenAI`` of the model stamp: itself, in a binding, a fallback,
    an alternative, or made anew for each call. Other vendors' models stay as they are. Twice is harmless."""
    for part in _parts(model):
        kind = type(part)  # read once: another thread may be at it too
        if isinstance(part, BaseChatModel):
            if _is_openais(part):
                wrap_clients(part)
        elif hasattr(kind, "_model") and not hasattr(kind, "_antiphon_base"):
            part.__class__ = _stamping(kind)


def _parts(runnable: Runnable[Any, Any]) -> Iterator[Runnable[Any, Any]]:
    """A runnable and those that it is made of, as its fields hold them."""
    yield runnable
    if isinstance(runnable, BaseChatModel):
        return
    for field in vars(runnable).values():
        values = field.values() if isinstance(field, Mapping) else field if _is_list(field) else (field,)
        for value in values:
            if isinstance(value, Runnable):
                yield from _parts(value)


def _is_list(field: object) -> bool:
    return isinstance(field, list | tuple)


def _is_openais(model: BaseChatModel) -> bool:
    if "langchain_openai" not in sys.modules:  # so it is none of its models
        return False
    from langchain_openai import AzureChatOpenAI, ChatOpenAI

    return isinstance(model, ChatOpenAI | AzureChatOpenAI)


def clients_of(model: Any) -> tuple[Any, Any]:
    """The sync and the async client of such a model; None where it has none. One that was given for a single
    API has only the resource: ``client.chat.completions``."""
    return (
        model.root_client or getattr(model.client, "_client", None),
        model.root_async_client or getattr(model.async_client, "_client", None),
    )


def wrap_clients(
    model: Any, *, conversation: Conversation | None = None, wire: Wire | str | None = None
) -> None:
    """Wrap both, as :func:`antiphon_openai.wrap` does; what is no client of openai stays as it is."""
    import openai

    import antiphon_openai

    for client in clients_of(model):
        if isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
            antiphon_openai.wrap(client, conversation=conversation, wire=wire)


@functools.cache
def _stamping(base: type[Any]) -> type[Any]:
    """The class of what ``init_chat_model`` gives where fields are configurable: it makes a model for each
    call, and so do those that are derived from it."""

    def stamped(name: str) -> Any:
        @functools.wraps(getattr(base, name))
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = getattr(base, name)(self, *args, **kwargs)
            stamp_calls(made)
            return made

        return method

    makers = ("_model", "bind_tools", "with_config", "with_structured_output")
    methods = {name: stamped(name) for name in makers if hasattr(base, name)}
    return type(base.__name__, (base,), {**methods, "__module__": base.__module__, "_antiphon_base": base})
