"""A log's conversations to simulate, and what of them the log does not tell."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from antiphon_server.bench.simulate.workload import CODING_AGENT, Conversation, Lane, Turn
from antiphon_server.traces.prefix import Change, Repeat, repeats
from antiphon_server.traces.trace import Call, Trace
from antiphon_server.traces.trace import Conversation as Told


@dataclass(frozen=True, slots=True)
class Traced:
    """``notes``: the trace's, and what was drawn or assumed, for people to read."""

    lanes: tuple[Lane, ...]
    notes: tuple[str, ...]


def from_trace(trace: Trace, *, window: float | None = None, copies: int = 1, seed: int = 1) -> Traced:
    """A trace's conversations, closed loop. They begin when they did, or at random within ``window`` seconds.

    Pauses that the trace does not tell are drawn from :data:`CODING_AGENT`, and a prompt of which it does not
    tell what repeats is taken to begin with all of the last one and its answer; ``notes`` count both.

    Raises:
        ValueError: of no prompt it tells what repeats.
    """
    source = random.Random(seed)
    taken = [(told, repeats(told, trace.block_size)) for told in trace.conversations]
    _reuse_is_told(taken)
    lanes: list[Lane] = []
    drawn: Counter[str] = Counter()
    for copy in range(copies):
        for told, repeated in taken:
            if not told.calls:
                continue
            start = told.calls[0].at if window is None else None
            if start is None:
                start = source.uniform(0.0, window if window is not None else CODING_AGENT.window)
                drawn["start"] += window is None
            turns = tuple(_turns(told.calls, repeated, source, drawn))
            lanes.append(Lane((Conversation(f"{told.name}.{copy}", start, turns),)))
    return Traced(tuple(lanes), (*trace.notes, *_notes(drawn, len(lanes))))


def _reuse_is_told(taken: Sequence[tuple[Told, Sequence[Repeat | None]]]) -> None:
    """Made up for all turns, it would decide the comparison by itself."""
    later = [repeat for _, repeated in taken for repeat in repeated[1:]]
    if later and not any(later):
        raise ValueError(
            f"--trace: the log does not tell of any of its {len(later)} later prompts what they repeat of "
            "the last one: log messages or blocks of prompts, too (docs/traces.md), or leave --trace out"
        )


def _turns(
    calls: Sequence[Call], repeated: Sequence[Repeat | None], source: random.Random, drawn: Counter[str]
) -> Iterator[Turn]:
    for index, (call, repeat) in enumerate(zip(calls, repeated, strict=True)):
        gap = call.gap if call.gap is not None else CODING_AGENT.gap.draw(source)
        keeps = None
        if repeat is not None and (repeat.change is not Change.EXTENSION or repeat.most < repeat.held):
            keeps = repeat.most
        if index:
            drawn["later"] += 1
            drawn["gap"] += call.gap is None
            drawn["repeat"] += repeat is None
            drawn["answer"] += repeat is not None and repeat.answer is None
        yield Turn(gap if index else 0.0, max(1, call.prompt), max(1, call.answer), keeps)


def _notes(drawn: Counter[str], conversations: int) -> Iterator[str]:
    later = drawn["later"]
    if drawn["start"]:
        yield (
            f"the log does not tell when {drawn['start']} of {conversations} conversations began: they begin "
            f"at random within {CODING_AGENT.window:g} s (--window)"
        )
    if drawn["gap"]:
        yield (
            f"{drawn['gap']} of {later} gaps between turns are not in the log: they were drawn as modelled "
            f"agents' are ({CODING_AGENT.name})"
        )
    if drawn["repeat"]:
        yield (
            f"the log does not tell what {drawn['repeat']} of {later} later prompts repeat: they are taken "
            "to repeat all of the last prompt and its answer"
        )
    if drawn["answer"]:
        yield (
            f"the log does not tell whether {drawn['answer']} of {later} later prompts repeat the last "
            "answer: they are taken to"
        )
