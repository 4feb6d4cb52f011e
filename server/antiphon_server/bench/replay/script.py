"""What a replay sends: a recorded conversation as turns, each told by how it differs from the last one.

The model answers anew, and its live answer stands where the recorded one stood: a replay's KV is real. So a
turn does not hold its whole prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
"""As in an OpenAI chat request."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call to come.

    ``gap``: seconds after the last answer, as recorded. ``keeps_messages``, ``keeps_tokens``: so much of the
    last prompt is the beginning of this one; both None: all of it, and the answer. ``new``: messages that
    follow. ``length``: tokens of the whole prompt, which the last message is cut to; None: as they are.
    ``answer``: its tokens. ``tools``: of the request.
    """

    gap: float
    new: tuple[Message, ...]
    answer: int
    keeps_messages: int | None = None
    keeps_tokens: int | None = None
    length: int | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation. ``cut``: turns of the record that it leaves out at the end."""

    name: str
    turns: tuple[Turn, ...]
    cut: int = 0


def copied(name: str, copy: int) -> str:
    """Name of a copy of a conversation; the first one is itself."""
    return f"{name}.{copy}" if copy else name


@dataclass(frozen=True, slots=True)
class Size:
    """How the record becomes smaller. ``scale``: tokens of the trace that one token stands for.
    ``longest_answer``, ``longest_prompt``: tokens that are sent, after scaling; a conversation ends before
    its first turn beyond ``longest_prompt``. ``common``: system prompts and tools of which only the length is
    known are the same text in all conversations."""

    scale: float = 1.0
    longest_answer: int | None = None
    longest_prompt: int | None = None
    common: bool = False

    def tokens(self, recorded: int) -> int:
        """Of a recorded length."""
        return round(recorded / self.scale)

    def answer(self, recorded: int) -> int:
        """Tokens of an answer."""
        scaled = max(1, self.tokens(recorded))
        return scaled if self.longest_answer is None else min(self.longest_answer, scaled)

    def fits(self, prompt: float, answer: int) -> bool:
        """A turn of so many tokens may be sent."""
        return self.longest_prompt is None or prompt + answer <= self.longest_prompt
