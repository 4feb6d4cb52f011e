"""The history in a model call's body, on any of the four surfaces, reduced to what makes prompts. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
"""A message as JSON, or an item of a Responses input."""

MARKS = frozenset({"cache_control"})
"""Fields that are no part of any prompt; clients move them from message to message."""

LABELS = MARKS | {
    "annotations",
    "call_id",
    "id",
    "index",
    "logprobs",
    "refusal",
    "status",
    "tool_call_id",
    "tool_use_id",
    "type",
}
"""Fields that hardly any template renders."""

_EMPTY: tuple[Any, ...] = (None, "", [], {})
FREE = frozenset({"arguments", "input"})
"""Fields of a tool call whose JSON is the model's."""
_ROLES = frozenset(
    {
        "assistant",
        "developer",
        "function",
        "function_call",
        "function_call_output",
        "reasoning",
        "system",
        "tool",
        "user",
    }
)


@dataclass(frozen=True, slots=True)
class History:
    """``part``: the field where the messages stand. ``body``: the whole request."""

    part: str
    messages: list[Message]
    body: Message


def history_of(raw: bytes) -> History | None:
    """Read a request; None if its history is not all there, or not of one conversation."""
    body = _parsed(raw)
    if not isinstance(body, dict) or body.get("previous_response_id") or body.get("conversation"):
        return None
    for part in ("messages", "input"):
        found = body.get(part)
        if isinstance(found, str):
            found = [{"role": "user", "content": found}]
        if isinstance(found, list) and all(isinstance(message, dict) for message in found):
            return History(part, found, body)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        (prompt,) = prompt
    is_ids = isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
    return History("prompt", [{"content": prompt}], body) if isinstance(prompt, str) or is_ids else None


def answers_of(reply: bytes | None) -> list[list[Message]]:
    """The messages of each choice of a whole reply; none of them is empty."""
    body = _parsed(reply)
    if not isinstance(body, dict):
        return []
    if isinstance(output := body.get("output"), list):
        found = [output]
    elif isinstance(content := body.get("content"), list):
        found = [[{"role": "assistant", "content": content}]]
    else:
        choices = body.get("choices")
        of_choices = [
            choice.get("message") or {"content": choice.get("text")}
            for choice in (choices if isinstance(choices, list) else ())
            if isinstance(choice, dict)
        ]
        found = [[message] for message in of_choices]
    return [each for each in found if each and all(isinstance(message, dict) for message in each)]


def usage_of(reply: bytes | None) -> tuple[int | None, int | None]:
    """Tokens of the prompt and of the answer, as a whole reply tells them."""
    body = _parsed(reply)
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return None, None
    prompt, answer = (
        next((n for name in names if type(n := usage.get(name)) is int and n >= 0), None)
        for names in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
    )
    return prompt, answer


def role_of(message: Mapping[str, Any]) -> str | None:
    """A message's role, of a Responses item that has none its type; None for words that no API has."""
    role = message.get("role") or message.get("type")
    return role if isinstance(role, str) and role in _ROLES else None


def normal(message: Message, ignored: Iterable[str] = LABELS) -> Message:
    """What a template sees of a message: nothing empty, one name for reasoning, JSON as its text."""
    found: Message = {}
    for name, value in message.items():
        if name in ignored:
            continue
        if name == "content" and isinstance(value, list):
            thoughts = [part for part in value if isinstance(part, dict) and "thinking" in part]
            if thoughts:
                found["reasoning"] = [part["thinking"] for part in thoughts]
            value = [part for part in value if part not in thoughts]
        value = _normal_value(name, value, ignored)
        if value not in _EMPTY:
            found["reasoning" if name == "reasoning_content" else name] = value
    return found


def _normal_value(name: str, value: Any, ignored: Iterable[str]) -> Any:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False) if name in FREE else normal(value, ignored)
    if isinstance(value, list):
        if name == "content" and len(value) == 1 and isinstance(value[0], dict):
            text = value[0].get("text")
            if isinstance(text, str):  # a single part of text is that text
                return text
        return [_normal_value("", each, ignored) for each in value]
    return value


def _parsed(raw: bytes | None) -> Any:
    try:
        return json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        return None
