"""Tells the SDK which conversation code inside a graph belongs to, without a line of the user's.

LangChain keeps the running config in a context variable. It is set inside nodes, tools and chains, sync and
async, and in the threads that LangChain starts; not in threads of somebody else.
"""

from __future__ import annotations

from langchain_core.runnables.config import var_child_runnable_config

from antiphon import Conversation
from antiphon._ambient import register
from antiphon._scope import innermost
from antiphon_langgraph._identity import beside, conversation_of, conversation_of_graph


def conversation_here(block: Conversation | None) -> Conversation | None:
    """The conversation of the config that surrounds this code; in a block, only what is beside that one's."""
    config = var_child_runnable_config.get()
    if config is None:
        return None
    return conversation_of(config) if block is None else beside(block, config)


def conversation_around() -> Conversation | None:
    """The conversation of the innermost ``with`` block, else of the graph that this code runs in."""
    scope, config = innermost(), var_child_runnable_config.get()
    if scope is not None:
        return scope.conversation
    return None if config is None else conversation_of_graph(config)


register("langgraph", conversation_here)
