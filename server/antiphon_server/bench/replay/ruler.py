"""How long text is in tokens of the server's model: measured once, not for each message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon_server.bench.replay.words import words

SAMPLE = 2000
"""Characters to measure with."""


@dataclass(frozen=True, slots=True)
class Ruler:
    """``characters``: that a token of our words has. ``frame``: tokens that the chat template puts around a
    message. ``head``: that it puts around all of them."""

    characters: float = 4.0
    frame: float = 4.0
    head: float = 3.0

    def text(self, tokens: float) -> int:
        """Characters of so many tokens."""
        return max(0, round(tokens * self.characters))

    def tokens(self, text: str) -> float:
        """Of a text."""
        return len(text) / self.characters

    def prompt(self, messages: Sequence[Any]) -> float:
        """Tokens of a prompt."""
        return self.head + sum(self.message(message) for message in messages)

    def message(self, message: Any) -> float:
        """Tokens of one message in a prompt."""
        called = message.get("tool_calls") or ()
        arguments = (f"{call['function'].get('name')}{call['function'].get('arguments')}" for call in called)
        return self.frame + self.tokens(content_of(message) + "".join(arguments))


def measured(count: Callable[[list[dict[str, str]]], int]) -> Ruler:
    """``count``: tokens of a prompt of these messages."""
    short, long = words("ruler", "short", SAMPLE), words("ruler", "long", 2 * SAMPLE)
    one = count([{"role": "user", "content": short}])
    longer = count([{"role": "user", "content": long}])
    three = count(
        [
            {"role": "user", "content": short},
            {"role": "assistant", "content": short},
            {"role": "user", "content": short},
        ]
    )
    characters = (len(long) - len(short)) / max(1, longer - one)
    text = len(short) / characters
    frame = max(0.0, (three - one) / 2 - text)
    return Ruler(characters, frame, max(0.0, one - frame - text))


def content_of(message: Any) -> str:
    """Text of a message's content."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content or ""
