"""What of a message stands in a prompt, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon_server.traces.trace import Message

FRAME = 16
"""Bytes that a chat template may put around a message."""
_encode = msgspec.json.Encoder(order="deterministic").encode


def written(message: Message) -> bytes:
    """Role, content, calls of tools, as a template writes them, roughly. Fields that are empty or that only
    servers add are none, so that an answer and its copy in the next request are equal."""
    parts = [str(message.get("role") or "").encode(), b"\n", _content(message.get("content"))]
    calls = message.get("tool_calls")
    if isinstance(calls, list | tuple):
        parts += [_call(call) for call in calls]
    if isinstance(call := message.get("function_call"), Mapping):
        parts.append(_call(call))
    return b"".join(parts) + b"\n" + b" " * FRAME


def _content(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "replace")
    if isinstance(content, list | tuple):
        return b"".join(map(_part, content))
    return b"" if content is None else _encode(content)


def _part(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode("utf-8", "replace")
    if isinstance(part, Mapping):
        for name in ("text", "content", "thinking"):
            if isinstance(text := part.get(name), str):
                return text.encode("utf-8", "replace")
    return _encode(part)


def _call(call: Any) -> bytes:
    """Arguments without the spaces that JSON does not need: servers parse and write them anew."""
    if not isinstance(call, Mapping):
        return _encode(call)
    function = call.get("function")
    said = function if isinstance(function, Mapping) else call
    arguments = said.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return b"\ncall " + str(said.get("name")).encode() + b" " + arguments.encode("utf-8", "replace")
    return b"\ncall " + str(said.get("name")).encode() + b" " + msgspec.json.encode(arguments)


def thought(message: Message) -> str | int | None:
    """What the model thought before it answered: its text, or how many tokens of it only the server knows. A
    template writes it before the answer, and leaves it out of older turns."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(name), str) and text:
            return text
    tokens = message.get("reasoning_tokens")
    return tokens if isinstance(tokens, int) and tokens else None


def tool_written(tool: Mapping[str, Any]) -> bytes:
    """A tool's definition."""
    return _encode(tool) + b"\n"
