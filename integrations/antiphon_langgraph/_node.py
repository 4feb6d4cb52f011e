"""Nodes that run in a conversation of their own, or pin their graph's."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from functools import partial, wraps
from typing import Any, TypeVar, overload

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from antiphon import ClientError, Conversation, ConversationError, current

Node = TypeVar("Node", bound=Callable[..., Any])


@overload
def conversation_node(node: Runnable[Any, Any], *, name: str | None = None) -> Runnable[Any, Any]: ...
@overload
def conversation_node(node: Node, *, name: str | None = None) -> Node: ...
@overload
def conversation_node(node: None = None, *, name: str | None = None) -> Callable[[Node], Node]: ...
def conversation_node(node: Any = None, *, name: str | None = None) -> Any:
    """A node of a graph whose model calls, and those of graphs that it invokes, are one conversation.

    ``node``: a function, sync or async, a generator function, a callable object, or a ``Runnable`` such as a
    compiled graph. ``name``: the conversation is the child ``<id>/<name>`` of the one that the node would
    belong to, for a prompt that grows apart from the rest; None is that conversation itself. Like its thread
    it comes back, so leaving the node does not end it. Without a thread id nothing happens.

    Raises:
        ClientError: not a node.
        ConversationError: the name is empty.

    >>> @conversation_node(name="critic")  # doctest: +SKIP
    ... def criticize(state: State, config: RunnableConfig) -> State: ...
    """
    if name == "":
        raise ConversationError(
            "the conversation of a node has an empty name: pass one, or None for its graph's"
        )
    if node is None:
        return partial(conversation_node, name=name)
    if isinstance(node, Runnable):
        return _runnable(node, name)
    if not callable(node):
        raise ClientError(f"{node!r} is no node: pass a function or a Runnable, and a name as name=...")
    surrounded = _surrounded(node, name)
    surrounded.__name__ = getattr(node, "__name__", type(node).__name__)  # LangGraph's names of nodes
    return surrounded


def _conversation(name: str | None) -> Conversation | None:
    found = current()
    return found.child(name, keep=True) if found is not None and name is not None else found


def _block(name: str | None) -> AbstractContextManager[object]:
    return _conversation(name) or nullcontext()


def _runnable(node: Runnable[Any, Any], name: str | None) -> Runnable[Any, Any]:
    # LangGraph reads the source of these to find a graph inside: they must name it themselves.
    def run(state: Any, config: RunnableConfig) -> Any:
        with _block(name):
            return node.invoke(state, config)

    async def arun(state: Any, config: RunnableConfig) -> Any:
        with _block(name):
            return await node.ainvoke(state, config)

    return RunnableLambda(run, arun, name=node.get_name())


def _surrounded(node: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    """A function of the same kind and signature, for LangGraph passes what the signature asks for."""
    plain = inspect.isroutine(node) or isinstance(node, partial) or hasattr(node, "__name__")
    function: Callable[..., Any] = node if plain else node.__call__  # type: ignore[operator]

    if inspect.isasyncgenfunction(function):

        async def astepping(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            conversation, items = _conversation(name), function(*args, **kwargs)
            async with aclosing(items if conversation is None else conversation.steps(items)) as stepped:
                async for item in stepped:
                    yield item

        return wraps(function)(astepping)

    if inspect.isgeneratorfunction(function):

        def stepping(*args: Any, **kwargs: Any) -> Iterator[Any]:
            conversation, items = _conversation(name), function(*args, **kwargs)
            yield from items if conversation is None else conversation.steps(items)

        return wraps(function)(stepping)

    if inspect.iscoroutinefunction(function):

        async def arun(*args: Any, **kwargs: Any) -> Any:
            with _block(name):
                return await function(*args, **kwargs)

        return wraps(function)(arun)

    def run(*args: Any, **kwargs: Any) -> Any:
        with _block(name):
            return function(*args, **kwargs)

    return wraps(function)(run)
