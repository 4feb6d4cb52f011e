"""``/completions``: the message's text."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon.testing._history import History
from antiphon.testing._reply import pieces_of, text_of
from antiphon.testing._surfaces.reply import Event, Json, Reply, usage_of


class Completions:
    """``/completions``: the message's text."""

    ends = "data: [DONE]\n\n"

    def whole(self, reply: Reply) -> Json:
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None, "text": text_of(reply.message)}
        return {**self._envelope(reply), "choices": [choice], "usage": usage_of(reply)}

    def events(self, reply: Reply, usage: bool) -> Iterator[Event]:
        envelope = self._envelope(reply)
        parts = [(piece, None) for piece in pieces_of(text_of(reply.message))]
        for text, finish in (*parts, ("", "stop")):
            yield None, {**envelope, "choices": [{"index": 0, "finish_reason": finish, "text": text}]}
        if usage:
            yield None, {**envelope, "choices": [], "usage": usage_of(reply)}

    def answer(self, whole: Json) -> History:
        text: str = whole["choices"][0]["text"]
        return text

    def _envelope(self, reply: Reply) -> Json:
        return {"id": f"cmpl-{reply.number}", "object": "text_completion", "created": 1, "model": reply.model}
