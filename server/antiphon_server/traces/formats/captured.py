"""Messages that instrumentations put into spans: in attributes or events, whole or piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon_server.traces.formats.embedded import opened
from antiphon_server.traces.formats.spans import Span, under
from antiphon_server.traces.trace import Message

_ROLES = ("system", "developer", "user", "assistant", "tool")


def messages_in(span: Span) -> list[Message]:
    """Of the request; empty where they were not captured."""
    said = span.attributes
    for found in (
        _messages(opened(said.get("gen_ai.input.messages"))),
        _messages(opened(said.get("gen_ai.prompt"))),
        _messages(under(said, "gen_ai.prompt")),
        _messages(under(said, "llm.input_messages")),
        _events(span),
    ):
        if found:
            return [*_system(said), *found]
    return []


def answer_in(span: Span) -> Message | None:
    said = span.attributes
    for found in (
        _messages(opened(said.get("gen_ai.output.messages"))),
        _messages(opened(said.get("gen_ai.completion"))),
        _messages(under(said, "gen_ai.completion")),
        _messages(under(said, "llm.output_messages")),
        _choices(span),
    ):
        if found:
            return {**found[0], "role": "assistant"}
    return None


def tools_in(said: Mapping[str, Any]) -> Any:
    found = opened(said.get("gen_ai.tool.definitions"))
    if not isinstance(found, list):
        found = [opened(tool.get("tool", {}).get("json_schema")) for tool in _maps(under(said, "llm.tools"))]
    return [tool for tool in map(opened, found) if isinstance(tool, Mapping)]


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _system(said: Mapping[str, Any]) -> list[Message]:
    """Instructions that stand apart from the messages."""
    found = opened(said.get("gen_ai.system_instructions"))
    return [{"role": "system", "content": _content(found)}] if found else []


def _events(span: Span) -> list[Message]:
    """Of the conventions before 1.37: one event a message, or one for all."""
    for name in ("gen_ai.content.prompt", "gen_ai.client.inference.operation.details"):
        for event, said in span.events:
            if event == name:
                found = said.get("gen_ai.prompt", said.get("gen_ai.input.messages"))
                return [*_system(said), *_messages(opened(found))]
    found = []
    for event, said in span.events:
        role = event.removeprefix("gen_ai.").removesuffix(".message")
        if event == f"gen_ai.{role}.message" and role in _ROLES:
            body = opened(said.get("gen_ai.event.content", said.get("body", said)))
            found.append(
                _message(
                    {"role": role, **body} if isinstance(body, Mapping) else {"role": role, "content": body}
                )
            )
    return [message for message in found if message is not None]


def _choices(span: Span) -> list[Message]:
    for event, said in span.events:
        if event in ("gen_ai.content.completion", "gen_ai.client.inference.operation.details"):
            return _messages(opened(said.get("gen_ai.completion", said.get("gen_ai.output.messages"))))
        if event == "gen_ai.choice":
            body = opened(said.get("gen_ai.event.content", said.get("body", said)))
            inner = opened(body.get("message", body)) if isinstance(body, Mapping) else body
            return _messages([{"role": "assistant", **inner} if isinstance(inner, Mapping) else inner])
    return []


def _messages(value: Any) -> list[Message]:
    """Empty where these are none."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value else []
    if isinstance(value, Mapping):
        value = value.get("messages", value.get("choices", [value]))
    found = [_message(item) for item in _maps(value)]
    return [message for message in found if message is not None]


def _message(item: Mapping[str, Any]) -> Message | None:
    """In any convention's form; None without a role."""
    inner = opened(item.get("message", item))
    item = inner if isinstance(inner, Mapping) else item
    role = item.get("role")
    if not isinstance(role, str):
        return None
    parts = _maps(opened(item.get("parts")))
    if parts:
        return _of_parts(role, parts)
    found: dict[str, Any] = {"role": role, "content": _content(opened_list(item.get("content")))}
    calls = opened(item.get("tool_calls"))
    if isinstance(calls, list) and calls:
        found["tool_calls"] = [_call(opened(call)) for call in calls]
    if isinstance(named := item.get("tool_call_id", item.get("id") if role == "tool" else None), str):
        found["tool_call_id"] = named
    return found


def opened_list(content: Any) -> Any:
    """Content that is a list written as text; other text stays text."""
    found = opened(content) if isinstance(content, str) and content.startswith("[{") else content
    return found if isinstance(found, list) else content


def _of_parts(role: str, parts: list[Mapping[str, Any]]) -> Message:
    """Of the conventions since 1.37."""
    found: dict[str, Any] = {"role": role}
    texts, calls, thoughts = [], [], []
    for part in parts:
        match part.get("type"):
            case "tool_call":
                calls.append(_call(part))
            case "tool_call_response":
                texts.append(part.get("response", part.get("result")))
                found["tool_call_id"] = part.get("id")
            case "reasoning":
                thoughts.append(str(part.get("content") or ""))
            case _:
                texts.append(part.get("content", part.get("text")))
    found["content"] = "".join(
        text if isinstance(text, str) else _json(text) for text in texts if text is not None
    )
    if thoughts:
        found["reasoning_content"] = "".join(thoughts)
    return {**found, "tool_calls": calls} if calls else found


def _call(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    inner = call.get("tool_call", call)
    inner = inner if isinstance(inner, Mapping) else call
    if isinstance(function := inner.get("function"), Mapping):
        name, arguments = function.get("name"), function.get("arguments")
    else:
        name, arguments = inner.get("name"), inner.get("arguments")
    said = arguments if isinstance(arguments, str) else _json(arguments)
    return {"id": inner.get("id"), "type": "function", "function": {"name": name, "arguments": said}}


def _content(content: Any) -> Any:
    """Parts of a text as one text."""
    if isinstance(content, list) and content and all(isinstance(part, Mapping) for part in content):
        texts = [part.get("content", part.get("text")) for part in content]
        if all(isinstance(text, str) for text in texts):
            return "".join(texts)
    return content


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
