"""``/messages``: text and calls as blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator

from antiphon.testing._history import History
from antiphon.testing._reply import pieces_of, text_of
from antiphon.testing._surfaces.reply import Event, Json, Reply


class Messages:
    """``/messages``: text and calls as blocks."""

    ends = ""

    def whole(self, reply: Reply) -> Json:
        message, blocks = reply.message, list[Json]()
        text, calls = text_of(message), message.get("tool_calls") or ()
        if text or not calls:
            blocks.append({"type": "text", "text": text})
        for call in calls:
            function = call["function"]
            told = json.loads(function["arguments"] or "{}")
            blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": told})
        return {
            "id": f"msg-{reply.number}",
            "type": "message",
            "role": "assistant",
            "model": reply.model,
            "content": blocks,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": reply.prompt - reply.cached,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": reply.cached,
                "output_tokens": reply.completion,
            },
        }

    def events(self, reply: Reply, usage: bool) -> Iterator[Event]:
        for event in self._parts(self.whole(reply)):
            yield event["type"], event

    def answer(self, whole: Json) -> History:
        return [{"role": "assistant", "content": whole["content"]}]

    def _parts(self, whole: Json) -> Iterator[Json]:
        begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 0}}
        yield {"type": "message_start", "message": begun}
        for index, block in enumerate(whole["content"]):
            is_text = block["type"] == "text"
            empty: Json = {"text": ""} if is_text else {"input": {}}
            kind, name = ("text_delta", "text") if is_text else ("input_json_delta", "partial_json")
            yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
            for piece in pieces_of(block["text"] if is_text else json.dumps(block["input"])):
                delta = {"type": kind, name: piece}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": ending, "usage": whole["usage"]}
        yield {"type": "message_stop"}
