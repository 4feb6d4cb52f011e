"""The announcement's method as a workload, and what a rate model makes of its figures."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from antiphon_server.bench.simulate.announcement import End, Published
from antiphon_server.bench.simulate.fleet import Fleet
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.run import Result, simulate
from antiphon_server.bench.simulate.workload import Conversation, Lane, Turn

CONVERSATIONS = 10
TURNS = 10
CLIENTS = 2
NEW = 150
ANSWER = 300
REPEATS = 3
"""Times as many conversations, as one run's mean still depends on how the two clients meet."""
JITTER = 0.5
"""Seconds of pause at most, at random: real answers do not take the same time to the millisecond, and two
clients in step would meet at every turn or at none."""
FLEET = Fleet(1, 1, prefill_cache=False, block=128, threshold=64, sequences=8)


def lanes(prefix: int) -> list[Lane]:
    """The method: conversations whose prompts begin with ``prefix`` tokens of their own, shared out to the
    clients, which ask one turn after the other."""
    source = random.Random(prefix)

    def conversation(number: int) -> Conversation:
        turns = tuple(
            Turn(
                source.uniform(0.0, JITTER),
                prefix + NEW + index * (NEW + ANSWER),
                ANSWER,
                answer_limit=ANSWER,
            )
            for index in range(TURNS)
        )
        return Conversation(f"c{number}", 0.0, turns)

    return [
        Lane(tuple(conversation(number) for number in range(client, REPEATS * CONVERSATIONS, CLIENTS)))
        for client in range(CLIENTS)
    ]


@dataclass(frozen=True, slots=True)
class Point:
    """A length, simulated with reuse off and on."""

    prefix: int
    off: Result
    on: Result


def point(model: RateModel, prefix: int) -> Point:
    """The method at one length."""
    asked = lanes(prefix)
    return Point(prefix, simulate(asked, model, FLEET, "off"), simulate(asked, model, FLEET, "proxy"))


def figures(model: RateModel, end: End) -> tuple[tuple[str, float, float], ...]:
    """(figure, as published, as simulated) of one end."""
    simulated = point(model, end.prefix)
    off, on = simulated.off, simulated.on
    pulls = on.pull.count if on.pull is not None else 0
    moved = model.transfer + model.transfer_token * (on.pulled / pulls if pulls else 0.0)
    name = f"{end.prefix // 1000}k"
    return (
        (f"TTFT off, {name}", end.ttft_off, _mean(off.ttft["all"])),
        (f"TTFT on, {name}", end.ttft_on, _mean(on.ttft["all"])),
        (f"prefill off, {name}", end.prefill_off, _mean(off.prefill_leg)),
        (f"prefill on, {name}", end.prefill_on, _mean(on.prefill_leg)),
        (f"D to P transfer, {name}", end.transfer, moved),
    )


def all_figures(model: RateModel, published: Published) -> tuple[tuple[str, float, float], ...]:
    """Of both ends."""
    return tuple(figure for end in published.ends for figure in figures(model, end))


def with_errors(model: RateModel, published: Published) -> RateModel:
    """The model, with what it makes of the published figures."""
    return replace(model, errors=all_figures(model, published))


def _mean(spread: object) -> float:
    return float(getattr(spread, "mean", 0.0))
