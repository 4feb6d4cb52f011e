"""Conversation identity for model calls, so that a router can reuse the KV of the last turn.

>>> with antiphon.conversation() as conversation:  # doctest: +SKIP
...     client.chat.completions.create(...)  # a client wrapped by an adapter, such as antiphon_openai.wrap
"""

from __future__ import annotations

from antiphon._carry import carry, carrying
from antiphon._conversation import Conversation, conversation, current
from antiphon._divergence import Divergence
from antiphon._errors import (
    AntiphonError,
    ClientError,
    ConversationError,
    MissingDependencyError,
    TurnError,
    WireError,
)
from antiphon._hook import hook, unhook
from antiphon._router import Router
from antiphon._stamp import Stamp, stamp
from antiphon._statistics import Statistics
from antiphon._tool_call import ToolCall
from antiphon._turn import Turn
from antiphon._wire import Wire, wire_of

__all__ = [
    "AntiphonError",
    "ClientError",
    "Conversation",
    "ConversationError",
    "Divergence",
    "MissingDependencyError",
    "Router",
    "Stamp",
    "Statistics",
    "ToolCall",
    "Turn",
    "TurnError",
    "Wire",
    "WireError",
    "carry",
    "carrying",
    "conversation",
    "current",
    "hook",
    "stamp",
    "unhook",
    "wire_of",
]
