"""``/chat/completions``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from antiphon.testing._history import History
from antiphon.testing._reply import Message, deltas_of
from antiphon.testing._surfaces.reply import Event, Json, Reply, usage_of


class Chat:
    """``/chat/completions``."""

    ends = "data: [DONE]\n\n"

    def whole(self, reply: Reply) -> Json:
        message = reply.message
        choice = {"index": 0, "finish_reason": _finish(message), "logprobs": None, "message": message}
        whole = {**self._envelope(reply, "chat.completion"), "choices": [choice], "usage": usage_of(reply)}
        given = reply.said if isinstance(reply.said, Mapping) and "choices" in reply.said else {}
        return {**whole, **given}

    def events(self, reply: Reply, usage: bool) -> Iterator[Event]:
        message, envelope = reply.message, self._envelope(reply, "chat.completion.chunk")
        for delta in deltas_of(message):
            yield None, {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        ending = {"index": 0, "delta": {}, "finish_reason": _finish(message)}
        yield None, {**envelope, "choices": [ending]}
        if usage:
            yield None, {**envelope, "choices": [], "usage": usage_of(reply)}

    def answer(self, whole: Json) -> History:
        return [whole["choices"][0]["message"]]

    def _envelope(self, reply: Reply, kind: str) -> Json:
        return {"id": f"chatcmpl-{reply.number}", "object": kind, "created": 1, "model": reply.model}


def _finish(message: Message) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"
