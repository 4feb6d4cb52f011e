"""From traffic to scripts: which conversations, and how each is made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.recorded import Recorded, speaks
from antiphon_server.bench.replay.ruler import Ruler
from antiphon_server.bench.replay.script import Script, Size
from antiphon_server.bench.replay.synthetic import Synthetic
from antiphon_server.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Choice:
    """``conversations``: how many; None: all. ``turns``: of each at most. ``least``: conversations of fewer
    turns are left out. ``seed``: draws them at random; None: the first ones. ``copies``: each is
    played so often; copies share no more than the system prompt and tools."""

    conversations: int | None = None
    turns: int | None = None
    least: int = 1
    seed: int | None = None
    copies: int = 1


def scripts(
    trace: Trace, *, size: Size, pace: Pace, ruler: Ruler, choice: Choice, tools: bool = True
) -> tuple[Script, ...]:
    """What to send.

    Raises:
        ValueError: nothing is left to send.
    """
    recorded = Recorded(size, pace, ruler, tools)
    synthetic = Synthetic(trace, size, pace, ruler)
    drawn = list(trace.conversations)
    if choice.seed is not None:
        random.Random(choice.seed).shuffle(drawn)
    made: list[Script] = []
    found = 0
    for conversation in drawn:
        if choice.conversations is not None and found == choice.conversations:
            break
        source = recorded if speaks(conversation) else synthetic
        copies = [_limited(source.script(conversation, copy), choice.turns) for copy in range(choice.copies)]
        if len(copies[0].turns) >= choice.least:
            made += copies
            found += 1
    if not made:
        raise ValueError(
            f"none of {len(drawn)} conversations has {choice.least} turn(s) to replay within the limits: "
            "raise --scale or --longest-prompt, or lower --least-turns"
        )
    return _named_apart(made)


def _limited(script: Script, turns: int | None) -> Script:
    if turns is None or len(script.turns) <= turns:
        return script
    return replace(script, turns=script.turns[:turns])


def _named_apart(made: Sequence[Script]) -> tuple[Script, ...]:
    """Two traces may use one name."""
    seen: dict[str, int] = {}
    found: list[Script] = []
    for script in made:
        seen[script.name] = times = seen.get(script.name, 0) + 1
        found.append(script if times == 1 else replace(script, name=f"{script.name}#{times}"))
    return tuple(found)
