"""The announcement's figures, and its method as a workload: 1 prefill and 1 decode engine on two
p5en.48xlarge, vLLM 0.29, NIXL 1.4.1 over EFA, prefill without a prefix cache."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class End:
    """Figures at one length of the prompt's beginning, in seconds: means over all turns."""

    prefix: int
    ttft_off: float
    ttft_on: float
    prefill_off: float
    prefill_on: float
    transfer: float


@dataclass(frozen=True, slots=True)
class Published:
    """``lengths``: of the prompt's beginning that were measured; figures are published of the ``ends``.
    Tokens and bytes. ``step``: seconds of a decode step, which is not published: assumed."""

    title: str
    lengths: tuple[int, ...]
    ends: tuple[End, End]
    bytes_per_token: int
    step: float


PUBLISHED = {
    "qwen3-32b-p5en": Published(
        "Qwen3-32B",
        (2000, 4000, 8000, 12000, 16000, 20000, 24000),
        (End(2000, 0.158, 0.122, 0.153, 0.128, 0.030), End(24000, 0.778, 0.460, 0.744, 0.414, 0.130)),
        # 64 layers, 8 KV heads of 128, keys and values, two bytes each
        64 * 8 * 128 * 2 * 2,
        0.010,
    ),
    "glm-5-fp8-p5en": Published(
        "GLM-5-FP8",
        (2000, 4000, 8000, 12000, 16000, 20000),
        (End(2000, 0.500, 0.358, 0.500, 0.316, 0.029), End(20000, 2.334, 0.702, 2.331, 0.541, 0.110)),
        # 78 layers, a latent of 512 and 64 rotary numbers, two bytes each
        78 * (512 + 64) * 2,
        0.015,
    ),
}


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
