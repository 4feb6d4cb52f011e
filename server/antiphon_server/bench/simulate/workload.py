"""Conversations to simulate: lengths and pauses of their turns."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Turn:
    """``gap``: seconds after the last answer. ``prompt``, ``answer``: tokens. ``keeps``: tokens of the last
    prompt and its answer that this prompt begins with; None: all. ``answer_limit``: that the request
    allows."""

    gap: float
    prompt: int
    answer: int
    keeps: int | None = None
    answer_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """``start``: seconds after the simulation's. ``shared``: tokens that all of its ``group`` begin with."""

    name: str
    start: float
    turns: tuple[Turn, ...]
    shared: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """A client: whole conversations at once, turn by turn, one request at a time. Each agent is one with a
    single conversation."""

    conversations: tuple[Conversation, ...]

    def turns(self) -> Iterator[tuple[Conversation, int]]:
        """In the order in which they are asked: round robin."""
        longest = max((len(c.turns) for c in self.conversations), default=0)
        for index in range(longest):
            for conversation in self.conversations:
                if index < len(conversation.turns):
                    yield conversation, index


@dataclass(frozen=True, slots=True)
class LogNormal:
    """By two points of its distribution: half of all are below ``median``, nine in ten below ``p90``."""

    median: float
    p90: float
    least: float = 1.0
    most: float = math.inf

    def draw(self, source: random.Random) -> float:
        deviation = math.log(self.p90 / self.median) / 1.2815515655446004
        value = self.median * math.exp(source.gauss(0.0, deviation))
        return min(self.most, max(self.least, value))


@dataclass(frozen=True, slots=True)
class Quantiles:
    """By points (share of all, value), logarithmic between them."""

    points: tuple[tuple[float, float], ...]

    def draw(self, source: random.Random) -> float:
        share = source.random()
        place = bisect_right([point[0] for point in self.points], share)
        (low, start), (high, end) = self.points[place - 1], self.points[place]
        return start * math.exp(math.log(end / start) * (share - low) / (high - low))


@dataclass(frozen=True, slots=True)
class Workload:
    """Agents. Tokens; ``turns``: of a conversation. ``first``: of the first prompt, ``shared`` of them the
    same in all conversations. ``new``: after each answer. ``gap``: seconds. ``compacts``: share of turns that
    keep less than half of the last prompt; ``edits``: that keep more than half, but not all. ``longest``:
    prompt, beyond which a conversation is compacted. ``window``: seconds within which all conversations
    begin."""

    name: str
    turns: LogNormal | int
    first: LogNormal
    new: LogNormal
    answer: LogNormal
    gap: Quantiles
    shared: int = 0
    compacts: float = 0.0
    edits: float = 0.0
    longest: int = 160_000
    window: float = 300.0

    def lanes(self, conversations: int, seed: int) -> list[Lane]:
        """So many conversations, the same for the same seed."""
        return [Lane((self._conversation(number, seed),)) for number in range(conversations)]

    def _conversation(self, number: int, seed: int) -> Conversation:
        source = random.Random(f"{seed}.{number}")
        count = self.turns if isinstance(self.turns, int) else round(self.turns.draw(source))
        start = source.uniform(0.0, self.window)
        prompt, kept = round(self.first.draw(source)), None
        turns: list[Turn] = []
        for index in range(count):
            answer = round(self.answer.draw(source))
            gap = self.gap.draw(source) if index else 0.0
            turns.append(Turn(gap, prompt, answer, kept))
            whole, new, kind = prompt + answer, round(self.new.draw(source)), source.random()
            kept = None
            if kind < self.compacts or whole + new > self.longest:
                kept = round(whole * source.uniform(0.05, 0.5))
            elif kind < self.compacts + self.edits:
                kept = round(whole * source.uniform(0.5, 1.0))
            prompt = (whole if kept is None else kept) + min(new, self.longest // 2)
        return Conversation(f"c{number}", start, tuple(turns), min(self.shared, turns[0].prompt))


CODING_AGENT = Workload(
    "coding-agent",
    turns=LogNormal(44, 169, most=1000),
    first=LogNormal(23_000, 36_000, least=16_000, most=100_000),
    new=LogNormal(311, 3056, most=60_000),
    answer=LogNormal(213, 990, most=8_000),
    gap=Quantiles(
        ((0.0, 0.5), (0.5, 10.0), (0.75, 29.0), (0.9, 142.0), (0.95, 347.0), (0.959, 480.0), (1.0, 1800.0))
    ),
    shared=15_000,
    compacts=0.017,
    edits=0.005,
)
"""Measured over 220 sessions with 15,386 calls: turns, first prompt's median, new tokens, answers, gaps and
compactions. Assumed: the spread of first prompts, and what of them is shared (system prompt and tools are
15,000 tokens in the recorded sessions that the tests read)."""

WORKLOADS = {CODING_AGENT.name: CODING_AGENT}


def scaled(lanes: Sequence[Lane], factor: float) -> list[Lane]:
    """The same with all pauses so many times as long."""

    def turn(old: Turn) -> Turn:
        return replace(old, gap=old.gap * factor)

    return [
        Lane(
            tuple(
                replace(c, start=c.start * factor, turns=tuple(map(turn, c.turns)))
                for c in lane.conversations
            )
        )
        for lane in lanes
    ]
