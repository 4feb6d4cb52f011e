"""``/responses``: text and calls as items."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.testing._history import History
from antiphon.testing._reply import pieces_of, text_of
from antiphon.testing._surfaces.reply import Event, Json, Reply


class Responses:
    """``/responses``: text and calls as items."""

    ends = ""

    def whole(self, reply: Reply) -> Json:
        return self._response(reply, "completed", self._items(reply))

    def events(self, reply: Reply, usage: bool) -> Iterator[Event]:
        for number, event in enumerate(self._parts(reply)):
            yield event["type"], {**event, "sequence_number": number}

    def answer(self, whole: Json) -> History:
        items: list[Json] = whole["output"]
        return items

    def _parts(self, reply: Reply) -> Iterator[Json]:
        begun = self._response(reply, "in_progress", [])
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(self._items(reply)):
            place = {"output_index": index, "item_id": item["id"]}
            is_text = item["type"] == "message"
            empty: Json = {"content": []} if is_text else {"arguments": ""}
            opened = {**item, **empty, "status": "in_progress"}
            yield {"type": "response.output_item.added", "output_index": index, "item": opened}
            yield from self._text(place, item) if is_text else self._arguments(place, item)
            yield {"type": "response.output_item.done", "output_index": index, "item": item}
        yield {"type": "response.completed", "response": self.whole(reply)}

    def _text(self, place: Json, item: Json) -> Iterator[Json]:
        [part] = item["content"]
        place = {**place, "content_index": 0}
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        for piece in pieces_of(part["text"]):
            yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}

    def _arguments(self, place: Json, item: Json) -> Iterator[Json]:
        kind, text = "response.function_call_arguments", item["arguments"]
        for piece in pieces_of(text):
            yield {"type": f"{kind}.delta", **place, "delta": piece}
        yield {"type": f"{kind}.done", **place, "name": item["name"], "arguments": text}

    def _items(self, reply: Reply) -> list[Json]:
        message, items = reply.message, list[Json]()
        text, calls = text_of(message), message.get("tool_calls") or ()
        if text or not calls:
            part = {"type": "output_text", "text": text, "annotations": []}
            head = {"id": f"msg-{reply.number}", "type": "message", "role": "assistant"}
            items.append({**head, "status": "completed", "content": [part]})
        for place, call in enumerate(calls):
            head = {"id": f"fc-{reply.number}-{place}", "type": "function_call", "call_id": call["id"]}
            items.append({**head, "status": "completed", **call["function"]})
        return items

    def _response(self, reply: Reply, status: str, output: list[Json]) -> Json:
        return {
            "id": f"resp-{reply.number}",
            "object": "response",
            "created_at": 1,
            "status": status,
            "model": reply.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": reply.prompt,
                "input_tokens_details": {"cached_tokens": reply.cached},
                "output_tokens": reply.completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": reply.prompt + reply.completion,
            },
        }
