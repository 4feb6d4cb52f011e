"""What the fake router is told to say, and the pieces in which a stream says it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

Message = dict[str, Any]

Said = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Text; an assistant's message as JSON, its role optional; several that each call a tool, to be one message;
or a whole chat completion (with ``choices``), whose first message counts for other surfaces and streams."""

_WHOLE = frozenset({"id", "role", "type"})
"""Fields of text that never come in pieces."""

_PIECE = re.compile(r".{1,4}", re.DOTALL)
"""Characters of a stream's piece."""


def tool_call(name: str, /, **arguments: Any) -> Message:
    """The message of an assistant who calls a tool.

    Its arguments are written with a blank before each colon. No library writes JSON so: arguments that were
    parsed and written again on their way back into the history show.
    """
    text = json.dumps(arguments, ensure_ascii=False, separators=(", ", " : "))
    function = {"name": name, "arguments": text}
    call = {"id": f"call-{uuid4().hex[:12]}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def message_of(said: Said) -> Message:
    """The assistant's message.

    Raises:
        TypeError: it is nothing that can be said.
    """
    if isinstance(said, str):
        return {"role": "assistant", "content": said}
    if isinstance(said, Mapping):
        message = said["choices"][0]["message"] if "choices" in said else said
        return {"role": "assistant", "content": None, **message}
    if isinstance(said, Sequence) and said:
        first, *others = map(message_of, said)
        calls = [call for message in (first, *others) for call in message.get("tool_calls") or ()]
        return {**first, "tool_calls": calls}
    raise TypeError(f"cannot say {said!r}: pass text, a message, or tool_call(...), one or a list of them")


def deltas_of(message: Mapping[str, Any]) -> Iterator[Message]:
    """The message in a stream's pieces: text in several, be it content, a tool call's arguments or a field
    that nobody knows, and all else whole. Put together they are the message again."""
    calls = message.get("tool_calls") or ()
    texts = {name: text for name, text in message.items() if isinstance(text, str) and name not in _WHOLE}
    whole = {name: value for name, value in message.items() if name != "tool_calls" and name not in texts}
    yield {**whole, **dict.fromkeys(texts, "")}
    for name in sorted(texts, key=lambda name: name == "content"):  # reasoning comes first
        for piece in pieces_of(texts[name]):
            yield {name: piece}
    for index, call in enumerate(calls):
        function = call.get("function")
        opening = {"function": {**function, "arguments": ""}} if function else {}
        yield {"tool_calls": [{"index": index, **call, **opening}]}
        for piece in pieces_of(function["arguments"] if function else ""):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def pieces_of(text: str) -> Iterator[str]:
    """The text in a stream's pieces."""
    return (found.group() for found in _PIECE.finditer(text))


def text_of(message: Mapping[str, Any]) -> str:
    """What it says to the user. Content parts other than text say nothing."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
