"""A reply before it is put into a surface's words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from antiphon.testing._reply import Message, Said, message_of

Json = dict[str, Any]
Event = tuple[str | None, Json]
"""An event's name, where its surface names them, and its data."""


@dataclass(frozen=True, slots=True)
class Reply:
    """``number``: of the reply, for its id. Tokens: ``prompt``, and ``cached`` among them."""

    said: Said
    model: str
    number: int
    prompt: int
    cached: int

    @property
    def message(self) -> Message:
        return message_of(self.said)

    @property
    def completion(self) -> int:
        """Tokens said, as :func:`tokens` counts."""
        return tokens(json.dumps(self.message, ensure_ascii=False))


def tokens(text: str) -> int:
    """Tokens, roughly: one for every four characters begun."""
    return -(-len(text) // 4)


def usage_of(reply: Reply) -> Json:
    """Its tokens, in the words of chat completions."""
    return {
        "prompt_tokens": reply.prompt,
        "completion_tokens": reply.completion,
        "total_tokens": reply.prompt + reply.completion,
        "prompt_tokens_details": {"cached_tokens": reply.cached},
    }


def sse(event: Event) -> str:
    """An event as it travels."""
    name, data = event
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"
