"""Question 1: how much of a prompt repeats the turn before, and how that grows over a session. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.advise.turn import Turn
from antiphon_server.quantiles import quantile

STAGES = ((1, 1), (2, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, None))
"""Turns of a conversation, counted from 1, that are shown together."""

REWRITTEN = 0.1
"""Share of what was held that must be lost for a turn to count as a rewritten one; chat templates that drop a
thought lose less."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Turns ``first`` to ``last`` of their conversations. ``prompt``: median. ``share``: of their prompts'
    tokens that repeat."""

    first: int
    last: int | None
    turns: int
    prompt: int
    share: float


@dataclass(frozen=True, slots=True)
class Repetition:
    """``returning``: turns that have one before them. ``told``: of their prompts' tokens, those of turns of
    which the log tells what repeats; what follows is of those only, but for ``tokens``: of all prompts.
    ``returning_tokens``: of those turns' prompts; ``repeated``: of these, tokens that repeat; ``lost``:
    tokens that decode held and that did not; ``answers``: of ``repeated``, tokens that only decode ever held.
    ``typical``: median share, over turns. ``low``: the share that nine in ten turns exceed. ``rewritten``:
    turns that lost more than a tenth of what was held. ``start``, ``end``: tokens of a conversation's first
    and last prompt, medians."""

    calls: int
    conversations: int
    single: int
    returning: int
    told: float
    tokens: int
    returning_tokens: int
    repeated: int
    lost: int
    answers: int
    rewritten: int
    typical: float | None
    low: float | None
    start: int
    end: int
    stages: tuple[Stage, ...]

    @property
    def share(self) -> float:
        """Of returning turns' prompt tokens, those that repeat."""
        return self.repeated / self.returning_tokens if self.returning_tokens else 0.0

    @property
    def rewritten_share(self) -> float:
        """Of returning turns."""
        return self.rewritten / self.returning if self.returning else 0.0

    @property
    def answer_share(self) -> float:
        """Of what a prefill engine with a warm cache must compute on returning turns, the part that decode
        has."""
        computed = self.returning_tokens - self.repeated + self.answers
        return self.answers / computed if computed else 0.0


def repetition(turns: Sequence[Turn]) -> Repetition:
    """Of all turns, in order within their conversations."""
    returning = [turn for turn in turns if turn.index]
    later = [turn for turn in returning if turn.told]
    returning_tokens = sum(turn.prompt for turn in returning)
    lengths: dict[int, int] = {}
    ends: dict[int, int] = {}
    for turn in turns:
        lengths[turn.conversation] = max(lengths.get(turn.conversation, 0), turn.index + 1)
        ends[turn.conversation] = turn.prompt
    shares = [turn.repeated / turn.prompt for turn in later if turn.prompt]
    return Repetition(
        calls=len(turns),
        conversations=len(lengths),
        single=sum(length == 1 for length in lengths.values()),
        returning=len(returning),
        told=sum(turn.prompt for turn in later) / returning_tokens if returning_tokens else 1.0,
        tokens=sum(turn.prompt for turn in turns),
        returning_tokens=sum(turn.prompt for turn in later),
        repeated=sum(turn.repeated for turn in later),
        lost=sum(turn.lost for turn in later),
        answers=sum(turn.repeated - turn.local for turn in later),
        rewritten=sum(turn.lost > REWRITTEN * turn.held for turn in later),
        typical=quantile(shares, 0.5, None),
        low=quantile(shares, 0.1, None),
        start=int(quantile((turn.prompt for turn in turns if not turn.index), 0.5, 0)),
        end=int(quantile(ends.values(), 0.5, 0)),
        stages=tuple(_stages(turns)),
    )


def _stages(turns: Sequence[Turn]) -> list[Stage]:
    found = []
    for first, last in STAGES:
        part = [t for t in turns if t.told and first <= t.index + 1 and (last is None or t.index + 1 <= last)]
        if part:
            tokens = sum(turn.prompt for turn in part)
            share = sum(turn.repeated for turn in part) / tokens if tokens else 0.0
            middle = int(quantile((turn.prompt for turn in part), 0.5, 0))
            found.append(Stage(first, last, len(part), middle, share))
    return found
