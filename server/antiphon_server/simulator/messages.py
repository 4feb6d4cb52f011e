"""``/v1/messages``: requests read as chats, replies in Anthropic's words, as vLLM does it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from antiphon_server.protocol import Handle
from antiphon_server.simulator import sse
from antiphon_server.simulator.answer import Part
from antiphon_server.simulator.ask import Ask, BadRequestError, ChatRequest, chat_ask, convert
from antiphon_server.simulator.job import Output
from antiphon_server.simulator.reply import Json, cached_tokens, handle_event, handle_of
from antiphon_server.simulator.settings import Settings
from antiphon_server.simulator.spoken import SHOWN, items, text

Blocks = str | list[dict[str, Any]]
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_DELTAS = {
    Part.CONTENT: ("text_delta", "text"),
    Part.REASONING: ("thinking_delta", "thinking"),
    Part.ARGUMENTS: ("input_json_delta", "partial_json"),
}


class MessagesRequest(msgspec.Struct, kw_only=True):
    """Body of ``/v1/messages``; other fields are ignored."""

    model: str
    messages: list[dict[str, Any]]
    max_tokens: int
    system: Blocks | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stream: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


def read_messages(body: Any, settings: Settings) -> Ask:
    """A messages request.

    Raises:
        BadRequestError: it is malformed, too long, or for another model.
    """
    return chat_ask(_chat(convert(body, MessagesRequest)), settings)


def _chat(request: MessagesRequest) -> ChatRequest:
    choice: Any = None
    if request.tool_choice is not None:
        kind = request.tool_choice.get("type")
        named = {"type": "function", "function": {"name": request.tool_choice.get("name")}}
        choice = named if kind == "tool" else _CHOICES.get(str(kind))
    tools = [
        {"type": "function", "function": {"name": tool.get("name"), "parameters": tool.get("input_schema")}}
        for tool in request.tools or ()
    ]
    system = [{"role": "system", "content": _texts(request.system)}] if request.system else []
    return ChatRequest(
        model=request.model,
        messages=[*system, *(one for message in request.messages for one in _messages(message))],
        max_tokens=request.max_tokens,
        tools=tools or None,
        tool_choice=choice,
        stream=request.stream,
        cache_salt=request.cache_salt,
        kv_transfer_params=request.kv_transfer_params,
    )


def _texts(blocks: Blocks) -> str:
    return blocks if isinstance(blocks, str) else "".join(block.get("text") or "" for block in blocks)


def _messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """One message of Anthropic's as those of a chat: tool results stand alone there."""
    role, content = message.get("role"), message.get("content") or ""
    if role not in ("user", "assistant", "system"):
        raise BadRequestError(f"role {role!r} is not one of user, assistant, system", param="messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results = [
        {
            "role": "tool",
            "tool_call_id": block.get("tool_use_id"),
            "content": _texts(block.get("content") or ""),
        }
        for block in content
        if block.get("type") == "tool_result"
    ]
    spoken = [block for block in content if block.get("type") != "tool_result"]
    if not spoken:
        return [*results]
    calls = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})},
        }
        for block in spoken
        if block.get("type") == "tool_use"
    ]
    thought = "".join(block.get("thinking") or "" for block in spoken if block.get("type") == "thinking")
    said = "".join(block.get("text") or "" for block in spoken if block.get("type") == "text")
    whole: dict[str, Any] = {"role": role, "content": said}
    if calls:
        whole["tool_calls"] = calls
    if thought:
        whole["reasoning"] = thought
    return [*results, whole]


def anthropic_error(status: int, message: str, kind: str, param: str | None) -> Json:
    """An error in Anthropic's form."""
    return {"type": "error", "error": {"type": kind, "message": message}}


@dataclass
class MessagesReply:
    """Words of ``/v1/messages``."""

    ask: Ask
    request_id: str
    created: int
    model: str
    early: bool = False
    _open: Part | None = None
    _index: int = field(default=-1)

    def opening(self) -> list[bytes]:
        message = self._message([], None, None, {"input_tokens": len(self.ask.prompt), "output_tokens": 0})
        return [sse.named({"type": "message_start", "message": message})]

    def events(self, index: int, output: Output) -> list[bytes]:
        if output.part not in SHOWN:
            return []
        told: list[bytes] = []
        if output.part is not self._open:
            told += self._close()
            self._open = output.part
            self._index += 1
            block = self._block(output.part, "", {})
            event = {"type": "content_block_start", "content_block": block, "index": self._index}
            told.append(sse.named(event))
        kind, name = _DELTAS[output.part]
        delta = {"type": kind, name: text(output)}
        told.append(sse.named({"type": "content_block_delta", "delta": delta, "index": self._index}))
        return told

    def closing(self, answers: Sequence[Sequence[Output]], handle: Handle | None) -> list[bytes]:
        delta = {"stop_reason": self._stop(answers[0]), "stop_sequence": None}
        usage = self._usage(answers[0])
        last = sse.named({"type": "message_stop"})
        return [
            *self._close(),
            sse.named({"type": "message_delta", "delta": delta, "usage": usage}),
            last if handle is None else handle_event(handle) + last,
        ]

    def failed(self) -> list[bytes] | None:
        error = {"type": "internal_error", "message": "KV did not arrive"}
        return [*self.opening(), sse.named({"type": "error", "error": error})]

    def whole(self, answers: Sequence[Sequence[Output]]) -> Json:
        content = [self._block(item.part, item.text, _parsed(item.text)) for item in items(answers[0])]
        blocks = content or [{"type": "text", "text": ""}]
        message = self._message(blocks, self._stop(answers[0]), None, self._usage(answers[0]))
        handle = handle_of(answers)
        return message if handle is None else {**message, "kv_transfer_params": handle}

    def refused(self, status: int, message: str, kind: str, param: str | None) -> Json:
        return anthropic_error(status, message, kind, param)

    def _message(self, content: list[Json], stop: str | None, sequence: str | None, usage: Json) -> Json:
        return {
            "id": self.request_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": stop,
            "stop_sequence": sequence,
            "usage": usage,
        }

    def _block(self, part: Part, said: str, parsed: Json) -> Json:
        match part:
            case Part.REASONING:
                return {"type": "thinking", "thinking": said, "signature": "simulated"}
            case Part.ARGUMENTS:
                call = f"chatcmpl-tool-{self.request_id[-16:]}-0"
                return {"type": "tool_use", "id": call, "name": self.ask.call, "input": parsed}
            case _:
                return {"type": "text", "text": said}

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [sse.named({"type": "content_block_stop", "index": self._index})]

    def _stop(self, answer: Sequence[Output]) -> str:
        if answer[-1].finish == "length":
            return "max_tokens"
        return "tool_use" if self.ask.call is not None else "end_turn"

    def _usage(self, answer: Sequence[Output]) -> Json:
        cached = cached_tokens(self.ask, answer[-1])
        return {
            "input_tokens": len(self.ask.prompt) - cached,
            "output_tokens": len(answer),
            "cache_read_input_tokens": cached,
        }


def _parsed(arguments: str) -> Json:
    try:
        parsed = json.loads(arguments)
    except json.JSONDecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
