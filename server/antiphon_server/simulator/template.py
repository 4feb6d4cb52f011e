"""The chat template: messages and tools as the text that is tokenised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from antiphon_server.simulator.tokens import END, START

THINK = "<think>\n"
THOUGHT = "\n</think>\n\n"
CALL = "<tool_call>\n"
CALLED = "\n</tool_call>"

Message = Mapping[str, Any]


def render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """Text of a prompt that asks for the assistant's next message.

    Tool calls keep their arguments letter by letter, so a client that re-serialises them changes the prompt.
    """
    parts: list[str] = []
    if tools:
        listed = "\n".join(orjson.dumps(tool).decode() for tool in tools)
        parts.append(f"{START}system\n# Tools\n{listed}{END}\n")
    parts.extend(f"{START}{message['role']}\n{_body(message)}{END}\n" for message in messages)
    parts.append(f"{START}assistant\n")
    return "".join(parts)


def call_opening(name: str) -> str:
    """What stands before a tool call's arguments."""
    return f'{CALL}{{"name": {orjson.dumps(name).decode()}, "arguments": '


CALL_CLOSING = "}" + CALLED


def text_of(content: Any) -> str:
    """Text of a message's content: a string, a list of parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _body(message: Message) -> str:
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    thought = f"{THINK}{reasoning}{THOUGHT}" if reasoning else ""
    calls = "\n".join(
        f"{call_opening(call['function']['name'])}{call['function']['arguments']}{CALL_CLOSING}"
        for call in message.get("tool_calls") or ()
    )
    named = f"<tool_response {message['tool_call_id']}>\n" if message.get("tool_call_id") else ""
    return thought + named + text_of(message.get("content")) + calls
