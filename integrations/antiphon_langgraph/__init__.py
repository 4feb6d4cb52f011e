"""LangGraph and LangChain: every model call inside a graph belongs to its thread's conversation.

Clients that stamp (``antiphon_openai.wrap``, ``antiphon.hook``, ``chat_openai``) find it by themselves.

>>> agent = create_agent(model, tools, middleware=[AntiphonMiddleware()])  # doctest: +SKIP
>>> agent.invoke(..., {"configurable": {"thread_id": "42"}})  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from antiphon import MissingDependencyError

try:
    import langgraph.errors as _langgraph  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        "antiphon_langgraph needs langgraph, which is not installed: pip install 'antiphon[langgraph]'"
    ) from error

from antiphon_langgraph._ambient import conversation_here as _registered  # noqa: F401
from antiphon_langgraph._identity import conversation_of
from antiphon_langgraph._node import conversation_node

if TYPE_CHECKING:
    from antiphon_langgraph._chat_openai import VerbatimChatOpenAI, chat_openai
    from antiphon_langgraph._middleware import AntiphonMiddleware

__all__ = [
    "AntiphonMiddleware",
    "VerbatimChatOpenAI",
    "chat_openai",
    "conversation_node",
    "conversation_of",
]

_NEEDS = {
    "AntiphonMiddleware": ("_middleware", "langchain"),
    "VerbatimChatOpenAI": ("_chat_openai", "langchain-openai"),
    "chat_openai": ("_chat_openai", "langchain-openai"),
}
"""What takes a second to import, and is imported when it is asked for: name -> module, package."""


def __getattr__(name: str) -> Any:
    if name not in _NEEDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, package = _NEEDS[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ImportError as error:
        raise MissingDependencyError(
            f"antiphon_langgraph.{name} needs {package}, which cannot be imported ({error}): "
            "pip install 'antiphon[langgraph]'"
        ) from error
