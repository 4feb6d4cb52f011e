"""The full replay as lanes for the discrete-event simulator, with its engines' constants."""

from __future__ import annotations

import random
from collections.abc import Sequence

from antiphon_server.bench.replay.script import Script
from antiphon_server.bench.simulate.fleet import Fleet
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.workload import Conversation, Lane, Turn
from rig import replay
from rig.traces import BLOCK

MODEL = RateModel(
    "simulated engines",
    0.0,
    1 / replay.SPEED["prefill_rate"],
    step=1 / replay.SPEED["decode_rate"],
    chunk=replay.SPEED["chunk"],
    transfer_token=1 / replay.SPEED["transfer_rate"],
    bytes_per_token=1024,
)


def fleet(prefill_blocks: int, decode_blocks: int) -> Fleet:
    """Two of each, as the replay has them."""
    return Fleet(
        2,
        2,
        prefill_tokens=prefill_blocks * BLOCK,
        decode_tokens=decode_blocks * BLOCK,
        block=BLOCK,
        threshold=replay.SPEED["threshold"],
    )


def lanes(sessions: Sequence[Script], outcome: replay.Outcome, window: float, seed: int) -> list[Lane]:
    """Lengths are what the engines counted; all begin when they did."""
    starts = random.Random(seed)
    return [Lane((_conversation(session, outcome, starts.uniform(0.0, window)),)) for session in sessions]


def _conversation(session: Script, outcome: replay.Outcome, start: float) -> Conversation:
    turns = []
    for index, turn in enumerate(session.turns):
        served = outcome.turns[session.name, index]
        gap = turn.gap if index else 0.0
        turns.append(Turn(gap, served.prompt, len(served.ids), turn.keeps_tokens, turn.answer))
    first = session.turns[0].new[0]
    shared = len(str(first["content"])) if first["role"] == "system" else 0
    group = session.name.partition(".")[0]  # copies share their system prompt
    return Conversation(session.name, start, tuple(turns), min(shared, turns[0].prompt - 1), group)
