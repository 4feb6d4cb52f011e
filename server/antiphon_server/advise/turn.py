"""A model call as the adviser looks at it: lengths, times and what repeats. No text, no name of anybody."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """Lengths in tokens, times in seconds; None: the log does not say.

    ``conversation``: its number. ``index``: 0 for its first turn. ``held``: the last prompt and its
    answer, whose KV decode held when the last turn ended. ``repeated``: of ``held``, what this prompt
    begins with. ``local``: of ``repeated``, what was in the last prompt, so that prefill computed it then.
    ``extends``: all of ``held`` repeats. ``told``: the log tells what repeats; else nothing is taken to.
    ``busy``: the one before it is in flight, and has what was kept. ``gap``: since the last answer's end.
    ``at``: of the request; ``seconds``: until the answer's end. ``cached``, ``path``, ``reason``: as the
    server logged them.
    """

    conversation: int
    index: int
    prompt: int
    answer: int
    held: int = 0
    repeated: int = 0
    local: int = 0
    extends: bool = False
    told: bool = True
    busy: bool = False
    gap: float | None = None
    at: float | None = None
    seconds: float | None = None
    ttft: float | None = None
    cached: int | None = None
    path: str | None = None
    reason: str | None = None

    @property
    def total(self) -> int:
        """Tokens whose KV decode holds when this turn ends."""
        return self.prompt + self.answer

    @property
    def lost(self) -> int:
        """Tokens of the last turn that this prompt does not begin with: rewritten, compacted, or cut."""
        return max(0, min(self.held, self.prompt) - self.repeated)
