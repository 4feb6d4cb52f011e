"""LangChain's messages as it writes them down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon_server.traces.trace import Message

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool"}


def plain(message: Any) -> Message | None:
    """As in an OpenAI request; None where it is none of LangChain's."""
    if not isinstance(message, Mapping):
        return None
    inner = message.get("kwargs") if "lc" in message or message.get("type") == "constructor" else message
    inner = inner.get("data", inner) if isinstance(inner, Mapping) else inner
    if not isinstance(inner, Mapping) or "content" not in inner:
        return None
    said = (inner.get("type"), message.get("type"))
    kind = next((word for word in said if isinstance(word, str) and word), "")
    names = message.get("id")
    if kind not in _ROLES and isinstance(names, list) and names:
        kind = str(names[-1]).removesuffix("Chunk").removesuffix("Message").lower()
    if kind not in _ROLES:
        return None
    found: dict[str, Any] = {"role": _ROLES[kind], "content": inner["content"]}
    if isinstance(calls := inner.get("tool_calls"), list) and calls:
        found["tool_calls"] = [_call(call) for call in calls if isinstance(call, Mapping)]
    if inner.get("tool_call_id"):
        found["tool_call_id"] = inner["tool_call_id"]
    return found


def _call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    if "function" in call:
        return call
    arguments = msgspec.json.encode(call.get("args")).decode()
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": call.get("name"), "arguments": arguments},
    }
