"""Requests and responses of the chat, completions, responses and messages endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from antiphon_server.traces.formats.langchain import plain
from antiphon_server.traces.formats.usage import Usage, usage_in
from antiphon_server.traces.trace import Message


@dataclass(frozen=True, slots=True)
class Asked:
    """``previous``: id of the response that the messages go on from."""

    messages: tuple[Message, ...]
    tools: Any = None
    model: str | None = None
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    reply: Message | None
    usage: Usage
    model: str | None = None
    id: str | None = None
    created: Any = None


def asked(request: Any) -> Asked | None:
    """None where it is no request."""
    if not isinstance(request, Mapping):
        return None
    for name in ("messages", "input", "prompt"):
        if name in request and (found := _messages(request[name])):
            break
    else:
        return None
    if isinstance(system := request.get("system") or request.get("instructions"), str | list) and system:
        found = [{"role": "system", "content": system}, *found]
    model, previous = request.get("model"), request.get("previous_response_id")
    return Asked(
        tuple(found),
        request.get("tools") or request.get("functions"),
        model if isinstance(model, str) else None,
        previous if isinstance(previous, str) else None,
    )


def _messages(value: Any) -> list[Message]:
    """Empty where these are none."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value else []
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list | str):
        return _messages(value[0])
    if not isinstance(value, list):
        return []
    found = [_message(item) for item in value]
    return joined(message for message in found if message is not None) if None not in found else []


def _message(item: Any) -> Message | None:
    """A message, or an item of the responses endpoint as one."""
    if not isinstance(item, Mapping):
        return None
    if isinstance(item.get("role"), str):
        return item
    match item.get("type"):
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        case "reasoning":
            return {"role": "assistant", "content": None}
    return plain(item)


def joined(messages: Iterable[Message]) -> list[Message]:
    """Items of one answer, of which some only say what it calls, as one message."""
    found: list[Message] = []
    for message in messages:
        before = found[-1] if found else None
        if before is None or before["role"] != "assistant" or message["role"] != "assistant":
            found.append(message)
            continue
        if message.get("content") and before.get("content"):
            found.append(message)
            continue
        calls = [*(before.get("tool_calls") or ()), *(message.get("tool_calls") or ())]
        both = {**before, **message, "content": before.get("content") or message.get("content")}
        found[-1] = {**both, "tool_calls": calls} if calls else both
    return found


def answered(response: Any) -> Answered | None:
    """None where it is no response. The first of several answers."""
    if isinstance(response, str):
        return Answered({"role": "assistant", "content": response}, Usage()) if response else None
    if isinstance(response, list) and response and all(isinstance(chunk, Mapping) for chunk in response):
        return _streamed(response)
    if not isinstance(response, Mapping):
        return None
    reply, usage = _reply(response), usage_in(response.get("usage"))
    output = response.get("llm_output")
    if usage == Usage() and isinstance(output, Mapping):
        usage = usage_in(output.get("token_usage"))
    if usage == Usage():
        usage = (
            usage_in(response.get("usage_metadata"))
            if "usage_metadata" in response
            else usage_in(_lc_usage(response))
        )
    if reply is None and usage == Usage():
        return None
    if reply is not None and usage.thought and not (reply.get("reasoning_content") or reply.get("reasoning")):
        reply = {**reply, "reasoning_tokens": usage.thought}
    model, id_, created = (
        response.get("model"),
        response.get("id"),
        response.get("created", response.get("created_at")),
    )
    return Answered(
        reply,
        usage,
        model if isinstance(model, str) else None,
        id_ if isinstance(id_, str) else None,
        created,
    )


def _reply(response: Mapping[str, Any]) -> Message | None:
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        if isinstance(message := choices[0].get("message"), Mapping):
            return {**message, "role": "assistant"}
        text = choices[0].get("text")
        return {"role": "assistant", "content": text} if isinstance(text, str) else None
    if isinstance(output := response.get("output"), list):
        items = [message for message in map(_message, output) if message is not None]
        return next(iter(joined(items)), None)
    if isinstance(response.get("content"), str | list):
        said = {"role": "assistant", "content": response["content"]}
        return {**said, "tool_calls": response["tool_calls"]} if response.get("tool_calls") else said
    if isinstance(message := response.get("message"), Mapping):
        return plain(message) or {**message, "role": "assistant"}
    generation = _generation(response)
    return None if generation is None else plain(generation.get("message")) or _said(generation.get("text"))


def _said(text: Any) -> Message | None:
    return {"role": "assistant", "content": text} if isinstance(text, str) else None


def _generation(response: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """LangChain's first one."""
    found = response.get("generations")
    while isinstance(found, list) and found:
        found = found[0]
    return found if isinstance(found, Mapping) else None


def _lc_usage(response: Mapping[str, Any]) -> Any:
    message = (_generation(response) or {}).get("message")
    inner = message.get("kwargs", message) if isinstance(message, Mapping) else None
    return inner.get("usage_metadata") if isinstance(inner, Mapping) else None


def _streamed(chunks: list[Mapping[str, Any]]) -> Answered | None:
    """The answer of a stream that was logged chunk by chunk; calls of tools are not put together."""
    text, usage, last = (
        "",
        Usage(),
        answered({**chunks[-1], "choices": None, "usage": chunks[-1].get("usage")}),
    )
    for chunk in chunks:
        choices = chunk.get("choices")
        delta = (
            choices[0].get("delta")
            if isinstance(choices, list) and choices and isinstance(choices[0], Mapping)
            else None
        )
        if isinstance(delta, Mapping) and isinstance(delta.get("content"), str):
            text += delta["content"]
        if (counted := usage_in(chunk.get("usage"))) != Usage():
            usage = counted
    if not text and usage == Usage():
        return None
    known = last or Answered(None, usage)
    return replace(known, reply={"role": "assistant", "content": text}, usage=usage)
