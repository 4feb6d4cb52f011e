"""What a sweep measures: the announcement's method, and its sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = 2_000_000
"""Tokens: no model takes a longer prompt."""
FRAME_TOKENS = 32
"""That a chat template may add around a message."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Conversations of ``turns`` turns. Tokens: ``lengths``: of the prefix that a conversation starts with,
    one run each; ``new``: of each turn's message behind it; ``answer``: of each answer.

    ``active``: conversations that are open at once; ``clients``: turns in flight at once. ``repeat``: how
    often all is measured. ``settle``: seconds between two runs.
    """

    lengths: tuple[int, ...]
    conversations: int = 10
    turns: int = 10
    new: int = 150
    answer: int = 300
    clients: int = 2
    active: int = 10
    repeat: int = 1
    settle: float = 20.0

    def check(self, context: int | None) -> None:
        """``context``: tokens that the model takes; None: unknown.

        Raises:
            ValueError: the plan cannot be carried out.
        """
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"--lengths {_listed(self.lengths)}: a prefix has one token or more")
        if max(self.lengths) > LONGEST:
            raise ValueError(f"--lengths {_listed(self.lengths)}: no model takes more than {LONGEST} tokens")
        if self.turns < 2:
            raise ValueError(f"--turns {self.turns}: reuse begins with the second turn, take 2 or more")
        if self.clients > self.active:
            raise ValueError(
                f"--clients {self.clients} with --active {self.active}: a client needs a conversation of its "
                "own, raise --active or lower --clients"
            )
        grown = FRAME_TOKENS + self.turns * (self.new + self.answer + 2 * FRAME_TOKENS)
        if context is not None and max(self.lengths) + grown > context:
            raise ValueError(
                f"--lengths {_listed(self.lengths)}: {max(self.lengths)} tokens grow to about "
                f"{max(self.lengths) + grown} in {self.turns} turns, the model takes {context}: shorten them "
                f"to {max(0, context - grown)}, take fewer --turns, or raise the engines' --max-model-len"
            )

    def groups(self) -> Iterator[range]:
        """Conversations that are open together."""
        for first in range(0, self.conversations, self.active):
            yield range(first, min(first + self.active, self.conversations))

    @property
    def turns_of_an_arm(self) -> int:
        """In one state of prefill's cache."""
        return self.repeat * len(self.lengths) * self.conversations * self.turns


def lengths_of(text: str) -> tuple[int, ...]:
    """``1000,4000`` in order.

    Raises:
        ValueError: it is something else.
    """
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"--lengths {text!r} is not a list of numbers: write it like 1000,4000") from None


def _listed(lengths: tuple[int, ...]) -> str:
    return ",".join(map(str, lengths))
