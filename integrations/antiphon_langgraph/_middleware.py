"""Middleware for LangChain's agents."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from antiphon import Conversation, current
from antiphon_langgraph._ambient import conversation_around
from antiphon_langgraph._clients import stamp_calls

_log = logging.getLogger("antiphon")

ToolResult = ToolMessage | Command[Any]


class AntiphonMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Makes each model call of an agent, and of the agents inside its tools, say which conversation it is.

    The agent's own calls belong to its thread. Each tool call is a conversation ``<id>/<tool call id>``, so
    that sub-agents in tools have theirs, in parallel too; it ends with the tool call, unless interrupted.
    Summaries and other calls that LangChain makes beside the conversation are ``<id>/<source>``.

    Stamped are ``ChatOpenAI`` and ``AzureChatOpenAI``; what the caller has set wins. Models of other vendors
    are left alone, and without a thread id, or a ``with antiphon.conversation()`` around, nothing happens.

    >>> agent = create_agent(model, tools, middleware=[AntiphonMiddleware()])  # doctest: +SKIP
    """

    # The thread itself needs no block: the clients ask for it when they send (see _ambient).

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        _stamp(request)
        return handler(request)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        _stamp(request)
        return await handler(request)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]
    ) -> ToolResult:
        conversation = _of_tool_call(request)
        if conversation is None:
            return handler(request)
        ended = True
        try:
            with conversation:
                return handler(request)
        except GraphBubbleUp:  # interrupted: it will run again, under the same id
            ended = False
            raise
        finally:
            if ended:
                conversation.close()

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        conversation = _of_tool_call(request)
        if conversation is None:
            return await handler(request)
        ended = True
        try:
            with conversation:
                return await handler(request)
        except GraphBubbleUp:
            ended = False
            raise
        finally:
            if ended:
                await conversation.aclose()


def _stamp(request: ModelRequest[Any]) -> None:
    if current() is not None:
        try:
            stamp_calls(request.model)
        except Exception:
            _log.debug("cannot make %r stamp its calls", type(request.model).__name__, exc_info=True)


def _of_tool_call(request: ToolCallRequest) -> Conversation | None:
    """None where there is no conversation, or the call has no id. Agents start each tool call with a
    ``Send``, whose place says less than the id."""
    call, agent = request.tool_call.get("id"), conversation_around()
    return agent.child(call, keep=True) if call and agent is not None else None
