"""Recorded sessions as turns for simulated engines, of which each takes a letter for a token.

- A token stands for four of the trace's: a block of 64 becomes one of 16 letters, always the same ones for
  the same id, so prompts share the prefixes that they shared in the trace. Answers are a quarter as long, at
  most 48 tokens; what the engine really says takes the place of the trace's answer in the next prompt.
- Copies of a session share the system prompt and tools alone.
- Gaps are the trace's, at most 600 s. Where it has no times they are drawn with a fixed seed, half a second
  (median) after a tool's result and 12 s after an answer to a person. Text is as long as in the record.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.recorded import speaks
from antiphon_server.bench.replay.ruler import Ruler
from antiphon_server.bench.replay.script import Script, Size, Turn
from antiphon_server.bench.replay.scripts import Choice, scripts
from antiphon_server.traces.trace import Trace

BLOCK = 16
"""Tokens, of which the simulator makes one out of each letter."""
SCALE = 4.0
LONGEST_ANSWER = 48
LONGEST_GAP = 600.0
RULER = Ruler(characters=1.0, frame=10.0, head=11.0)
"""The simulator's."""


def sessions(traces: Sequence[Trace], copies: int) -> list[Script]:
    """All conversations, each so often."""
    found: list[Script] = []
    for trace in traces:
        spoken = {conversation.name for conversation in trace.conversations if speaks(conversation)}
        # Text is sent as it is; what has none is made a quarter as long.
        size = Size(1.0 if spoken else SCALE, LONGEST_ANSWER)
        made = scripts(trace, size=size, pace=Pace(), ruler=RULER, choice=Choice(copies=copies), tools=False)
        found += [_timed(script, drawn=bool(spoken)) for script in made]
    return found


def _timed(script: Script, *, drawn: bool) -> Script:
    source = random.Random(script.name)
    turns = [
        replace(turn, gap=_gap(turn, source) if drawn else min(LONGEST_GAP, turn.gap))
        for turn in script.turns
    ]
    return replace(script, turns=(replace(turns[0], gap=0.0), *turns[1:]))


def _gap(turn: Turn, source: random.Random) -> float:
    return source.lognormvariate(math.log(0.5 if turn.new[-1]["role"] == "tool" else 12.0), 0.6)


def flatten(all_sessions: Sequence[Script]) -> Iterator[tuple[Script, int, Turn]]:
    """Every turn."""
    for session in all_sessions:
        for index, turn in enumerate(session.turns):
            yield session, index, turn
