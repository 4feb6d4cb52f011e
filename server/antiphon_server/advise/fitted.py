"""How fast a user's own engines are, from what was measured on them, learnt as the router learns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.advise.turn import Turn
from antiphon_server.quantiles import quantile
from antiphon_server.router.plan.rates import Fit, Work
from antiphon_server.router.plan.reasons import Path

LEAST = 12
"""Legs that a fit needs."""


class FitError(ValueError):
    """There is nothing to fit to, or it is no sweep."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Seconds, as of :class:`~antiphon_server.advise.hardware.Hardware`. ``pull_token``, ``pull_fixed``,
    ``kv_bytes``: None where nothing was pulled. ``error``: median relative error of the ``legs`` it was
    fitted to. ``longest``: their longest prompt, in tokens."""

    source: str
    legs: int
    error: float
    fixed: float
    token: float
    attention: float
    pull_fixed: float | None = None
    pull_token: float | None = None
    kv_bytes: int | None = None
    longest: int | None = None


@dataclass(frozen=True, slots=True)
class Leg:
    """A prefill leg: tokens computed, tokens of its prompt, tokens pulled from decode, seconds."""

    new: int
    context: int
    pulled: int
    seconds: float

    @property
    def features(self) -> tuple[float, ...]:
        """As the router has them, but for what the prompt's length costs by itself: advice knows no such
        figure of other engines."""
        return Work(self.new, self.context, pulled=self.pulled).features[:-1]


def from_log(turns: Sequence[Turn]) -> Fitted:
    """From the TTFT of turns that the router says it served cold; what prefill's cache had is left out.

    Raises:
        FitError: there are too few.
    """
    legs = [
        Leg(max(1, turn.prompt - (turn.cached or 0)), turn.prompt, 0, turn.ttft)
        for turn in turns
        if turn.path == Path.COLD and turn.ttft and turn.prompt
    ]
    return fit(legs, "TTFT of the log's cold turns, waiting included", None)


def fit(legs: Sequence[Leg], source: str, kv_bytes: int | None) -> Fitted:
    """Least squares on relative errors, no part below zero.

    Raises:
        FitError: there are too few legs, or all are of one length.
    """
    if len(legs) < LEAST:
        raise FitError(f"--fit: {source} has {len(legs)} usable prefill legs, {LEAST} are needed")
    model = Fit(len(legs[0].features), forget=1.0, clip=1e9)
    for leg in legs:
        model.observe(leg.features, leg.seconds)
    fixed, token, attention, pull, _, each = model.parts
    if token <= 0.0 and attention <= 0.0:
        raise FitError(f"--fit: {source} does not tell what computing takes: prompts must differ in length")
    error = quantile((abs(model.seconds(leg.features) / leg.seconds - 1) for leg in legs), 0.5, 0.0)
    pulls = any(leg.pulled for leg in legs)
    return Fitted(
        source,
        len(legs),
        error,
        fixed,
        token / 1e3,
        attention / 1e6,
        each if pulls else None,
        pull / 1e3 if pulls else None,
        kv_bytes,
        max(leg.context for leg in legs),
    )
