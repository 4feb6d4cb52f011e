"""``/v1/responses``: requests read as chats, replies in OpenAI's newer words, kept when asked to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import msgspec

from antiphon_server.protocol import Handle
from antiphon_server.simulator import sse
from antiphon_server.simulator.answer import Part
from antiphon_server.simulator.ask import Ask, BadRequestError, ChatRequest, chat_ask, convert
from antiphon_server.simulator.job import Output
from antiphon_server.simulator.reply import Json, cached_tokens, handle_of, openai_error
from antiphon_server.simulator.settings import Settings
from antiphon_server.simulator.spoken import SHOWN, Item, items, text

Messages = list[dict[str, Any]]
Store = dict[str, tuple[Messages, Json]]
"""Messages that led to a response, and the response, by its id: in this engine's memory only."""

_DELTAS = {
    Part.CONTENT: "response.output_text",
    Part.REASONING: "response.reasoning_text",
    Part.ARGUMENTS: "response.function_call_arguments",
}


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """Body of ``/v1/responses``; other fields are ignored."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    background: bool | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    prompt: Any = None
    request_id: str = ""
    enable_response_messages: bool = False
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None


def read_responses(body: Any, settings: Settings, store: Store) -> tuple[ResponsesRequest, Messages, Ask]:
    """A responses request, and its history as a chat's messages.

    Raises:
        BadRequestError: it is malformed, too long, for another model, or follows a response that is not here.
    """
    request = convert(body, ResponsesRequest)
    if request.prompt is not None:
        raise BadRequestError("prompt template is not supported", param="prompt")
    if request.background and not (settings.store and request.store):
        raise BadRequestError("This engine does not support `store=True`", param="background")
    messages = _history(request, store)
    chat = ChatRequest(
        model=request.model,
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        tools=[_tool(tool) for tool in request.tools or ()] or None,
        tool_choice=_choice(request.tool_choice),
        stream=request.stream,
        seed=request.seed,
        ignore_eos=request.ignore_eos,
        cache_salt=request.cache_salt,
        kv_transfer_params=request.kv_transfer_params,
    )
    return request, messages, chat_ask(chat, settings)


def not_found(response_id: str) -> BadRequestError:
    """Nobody stored it here."""
    return BadRequestError(
        f"Response with id '{response_id}' not found.",
        status=404,
        param="response_id",
        kind="invalid_request_error",
    )


def _history(request: ResponsesRequest, store: Store) -> Messages:
    before: Messages = []
    previous = request.previous_response_id
    if previous is not None:
        if previous not in store:
            raise not_found(previous)
        messages, response = store[previous]
        before = [
            *(m for m in messages if m["role"] != "system"),
            *(_message(item) for item in response["output"]),
        ]
    told = request.input
    items = [{"role": "user", "content": told}] if isinstance(told, str) else told
    system = [{"role": "system", "content": request.instructions}] if request.instructions else []
    return _joined([*system, *before, *(_message(item) for item in items)])


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    match item.get("type", "message"):
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        case "reasoning":
            thought = "".join(part.get("text", "") for part in item.get("content") or ())
            return {"role": "assistant", "content": None, "reasoning": thought}
        case _:
            if "role" not in item:
                raise BadRequestError(f"input item {item.get('type')!r} is not known", param="input")
            return {"role": item["role"], "content": item.get("content")}


def _joined(messages: Messages) -> Messages:
    """What the assistant said in a row is one message."""
    out: Messages = []
    for message in messages:
        if out and message["role"] == out[-1]["role"] == "assistant":
            out[-1] = {**out[-1], **{name: value for name, value in message.items() if value}}
        else:
            out.append(message)
    return out


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if isinstance(choice, dict):
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


@dataclass
class ResponsesReply:
    """Words of ``/v1/responses``. Its streams carry the handle by themselves, in the last event."""

    request: ResponsesRequest
    messages: Messages
    ask: Ask
    request_id: str
    created: int
    model: str
    store: Store | None = None
    early: bool = True
    _number: int = 0
    _done: list[Json] = field(default_factory=list)
    _item: Item | None = None
    _item_id: str = ""

    def opening(self) -> list[bytes]:
        response = self.response("in_progress", [], None, None, None)
        return [self._event(f"response.{word}", response=response) for word in ("created", "in_progress")]

    def events(self, index: int, output: Output) -> list[bytes]:
        if output.part not in SHOWN:
            return []
        told: list[bytes] = []
        if self._item is None or self._item.part is not output.part:
            told += self._close()
            self._item, self._item_id = Item(output.part), f"item_{uuid4().hex[:16]}"
            item = self._worded(self._item, self._item_id, "in_progress")
            told.append(self._event("response.output_item.added", item=item, output_index=len(self._done)))
        said = text(output)
        self._item.text += said
        told.append(self._event(f"{_DELTAS[output.part]}.delta", delta=said, **self._place()))
        return told

    def closing(self, answers: Sequence[Sequence[Output]], handle: Handle | None) -> list[bytes]:
        told = self._close()
        response = self._finished(self._done, answers)
        return [*told, self._event("response.completed", response=response)]

    def failed(self) -> list[bytes] | None:
        return None

    def whole(self, answers: Sequence[Sequence[Output]]) -> Json:
        output = [self._worded(item, f"item_{uuid4().hex[:16]}", "completed") for item in items(answers[0])]
        return self._finished(output, answers)

    def refused(self, status: int, message: str, kind: str, param: str | None) -> Json:
        return openai_error(status, message, kind, param)

    def response(
        self, status: str, output: list[Json], usage: Json | None, handle: Handle | None, raw: Any
    ) -> Json:
        """The response as it stands."""
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.request_id,
            "created_at": self.created,
            "incomplete_details": cut,
            "instructions": self.request.instructions,
            "model": self.model,
            "object": "response",
            "output": output,
            "previous_response_id": self.request.previous_response_id,
            "status": status,
            "usage": usage,
            "kv_transfer_params": handle,
            "ec_transfer_params": None,
            "input_messages": raw,
        }

    def _finished(self, output: list[Json], answers: Sequence[Sequence[Output]]) -> Json:
        answer = answers[0]
        raw = None
        if self.request.enable_response_messages:
            raw = [{"type": "raw_message_tokens", "message": "", "tokens": self.ask.prompt}]
        usage = {
            "input_tokens": len(self.ask.prompt),
            "input_tokens_details": {"cached_tokens": cached_tokens(self.ask, answer[-1])},
            "output_tokens": len(answer),
            "total_tokens": len(self.ask.prompt) + len(answer),
        }
        status = "incomplete" if answer[-1].finish == "length" else "completed"
        response = self.response(status, output, usage, handle_of(answers), raw)
        if self.store is not None and self.request.store:
            self.store[self.request_id] = (self.messages, response)
        return response

    def _worded(self, item: Item, item_id: str, status: str) -> Json:
        match item.part:
            case Part.REASONING:
                parts = [{"text": item.text, "type": "reasoning_text"}]
                return {"id": item_id, "summary": [], "type": "reasoning", "content": parts, "status": status}
            case Part.ARGUMENTS:
                call = f"chatcmpl-tool-{self.request_id[-16:]}-0"
                return {
                    "arguments": item.text,
                    "call_id": call,
                    "name": self.ask.call,
                    "type": "function_call",
                    "id": item_id,
                    "status": status,
                }
            case _:
                said: Json = {"annotations": [], "text": item.text, "type": "output_text", "logprobs": None}
                return {
                    "id": item_id,
                    "content": [said] if item.text else [],
                    "role": "assistant",
                    "status": status,
                    "type": "message",
                }

    def _close(self) -> list[bytes]:
        if self._item is None:
            return []
        done = self._worded(self._item, self._item_id, "completed")
        told = [
            self._event(f"{_DELTAS[self._item.part]}.done", text=self._item.text, **self._place()),
            self._event("response.output_item.done", item=done, output_index=len(self._done)),
        ]
        self._done.append(done)
        self._item = None
        return told

    def _place(self) -> Json:
        return {"item_id": self._item_id, "output_index": len(self._done), "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse.named({**fields, "sequence_number": number, "type": kind})
