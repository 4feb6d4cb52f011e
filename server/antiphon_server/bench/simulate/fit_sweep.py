"""Rates fitted to what ``antiphon bench sweep`` measured, turn by turn.

To TTFT of whole turns, on every path: all of it is simulated. Advice fits the router's own model instead, to
prefill legs only, which is all that it compares.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from antiphon_server.bench.simulate.least import Array, least
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.sweep.files import SweepError, read
from antiphon_server.bench.sweep.record import Turn

PARAMETERS = ("prefill", "token", "attention", "pull", "pull_token", "hand_over", "tokenize")
FEWEST = 8
"""Turns from which anything can be told."""


def fit(path: Path) -> RateModel:
    """The model of a sweep's engines, with its error at each group of turns (medians).

    Raises:
        SweepError: it is none, or too short.
    """
    sweep = read(path)
    turns = [turn for turn in sweep.turns if turn.timed.ttft > 0 and turn.timed.prompt_tokens > 0]
    if len(turns) < FEWEST:
        raise SweepError(f"{path} has {len(turns)} turns: a fit needs {FEWEST} or more, sweep more lengths")
    model = _transfers(RateModel(f"{sweep.conditions.model} ({path.name})", 0.0, 0.0), turns)
    model = replace(model, step=_step(turns), chunk=2048)
    rest = np.array([turn.timed.ttft - model.step - _moving(model, turn) for turn in turns])
    values = _solve([_features(turn) for turn in turns], rest, [turn.timed.ttft for turn in turns])
    model = replace(model, **dict(zip(PARAMETERS, values, strict=True)))  # type: ignore[arg-type]
    return replace(
        model,
        errors=_errors(model, turns),
        assumed=(
            "decode steps take as long with many streams as with the sweep's",
            "waiting for other turns of the sweep counts as work",
        ),
    )


def _by_prefill(turn: Turn) -> bool:
    return turn.prefill.computed > 0


def _group(turn: Turn) -> str:
    place = turn.place
    when = "first turns" if place.turn == 1 else f"P cache {place.phase}"
    return f"TTFT {turn.arm}, {when}, {place.length}"


def _features(turn: Turn) -> tuple[float, ...]:
    """Of :data:`PARAMETERS`, in the units of their solution: seconds, and seconds of a thousand tokens."""
    prompt = turn.timed.prompt_tokens
    new = turn.prefill.computed if _by_prefill(turn) else turn.decode.computed
    pulled = turn.prefill.pulled
    return (
        1.0,
        new / 1e3,
        new * max(0.0, prompt - new / 2) / 1e6,
        float(pulled > 0),
        pulled / 1e3,
        float(_by_prefill(turn) and turn.decode.pulled > 0),
        prompt / 1e3,
    )


_UNITS = (1.0, 1e3, 1e3, 1.0, 1e3, 1.0, 1e3)


def _solve(rows: Sequence[tuple[float, ...]], target: Array, scale: Sequence[float]) -> list[float]:
    """By relative errors, so that short turns count as much as long ones."""
    matrix = np.array(rows) / np.array(scale)[:, None]
    x = least(matrix, target / np.array(scale), np.zeros(len(PARAMETERS)))
    return [float(value / unit) for value, unit in zip(x, _UNITS, strict=True)]


def _transfers(model: RateModel, turns: Sequence[Turn]) -> RateModel:
    """What moving KV takes, by the engines' own clocks; bytes of a token."""
    pulls = [t.prefill for t in turns if t.prefill.pulled > 0 and t.prefill.receiving > 0]
    if not pulls:
        return model
    rows = np.array([(1.0, p.pulled / 1e3) for p in pulls])
    seconds = np.array([p.receiving for p in pulls])
    fixed, each = least(rows / seconds[:, None], np.ones(len(pulls)), np.zeros(2))
    size = sum(p.received for p in pulls) / sum(p.pulled for p in pulls)
    return replace(
        model, transfer=float(fixed), transfer_token=float(each) / 1e3, bytes_per_token=round(size)
    )


def _moving(model: RateModel, turn: Turn) -> float:
    """Seconds of transfers in a turn."""
    pulled, handed = turn.prefill.pulled, turn.decode.pulled if _by_prefill(turn) else 0.0
    fixed = model.transfer if pulled > 0 else 0.0
    return fixed + (pulled + handed) * model.transfer_token


def _step(turns: Sequence[Turn]) -> float:
    waits = [wait for turn in turns for wait in turn.timed.waits]
    return statistics.median(waits) if waits else 0.0


def expected(model: RateModel, turn: Turn) -> float:
    """TTFT of a turn on idle engines."""
    units = zip(_features(turn), _UNITS, PARAMETERS, strict=True)
    parts = sum(feature * unit * float(getattr(model, name)) for feature, unit, name in units)
    return parts + model.step + _moving(model, turn)


def _errors(model: RateModel, turns: Sequence[Turn]) -> tuple[tuple[str, float, float], ...]:
    groups: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        groups[_group(turn)].append(turn)

    def middle(of: Callable[[Turn], float], some: Sequence[Turn]) -> float:
        return statistics.median(of(turn) for turn in some)

    return tuple(
        (name, middle(lambda t: t.timed.ttft, some), middle(lambda t: expected(model, t), some))
        for name, some in groups.items()
    )
