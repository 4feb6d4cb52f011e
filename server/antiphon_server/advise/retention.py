"""Question 3: how long decode keeps a conversation's KV, how often it is gone before the next turn, and what
keeping it takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from antiphon_server.advise.fate import Fate, Fates, Pinned
from antiphon_server.advise.sessions import active_at_once, active_seconds, followed
from antiphon_server.advise.turn import Turn
from antiphon_server.quantiles import Weighted, even, weighted

KEEPS = (10.0, 30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 1800.0, 3600.0)
"""Seconds; values of ``keep`` that are compared."""
_POINTS = 240


@dataclass(frozen=True, slots=True)
class Option:
    """One value of ``keep``. ``found``: of the tokens that repeat and whose gap is known, those that are
    still there. ``pinned``: tokens at rest for each conversation that is active, mean over time; 0: the log
    does not tell. ``held``: seconds that a turn's KV is pinned, mean."""

    keep: float
    found: float
    pinned: float
    held: float


@dataclass(frozen=True, slots=True)
class Retention:
    """``known``: of the tokens that repeat, those whose gap the log tells. ``gaps``: seconds, by share of
    turns; ``gaps_by_tokens``: by share of tokens that repeat. ``kept``, ``idle``, ``chance``, ``evicted``,
    ``busy``: of the known ones, what became of them with the settings as they are. ``timeline``: pinned
    tokens over the log's time. ``active``: conversations at once, mean, and ``most``."""

    known: float
    gaps: tuple[tuple[float, float], ...]
    gaps_by_tokens: tuple[tuple[float, float], ...]
    kept: float
    idle: float
    chance: float
    evicted: float
    busy: float
    options: tuple[Option, ...]
    chosen: Option
    timeline: tuple[Pinned, ...]
    pinned_mean: float | None
    pinned_most: int | None
    active: float | None
    most: int | None

    @property
    def gone(self) -> float:
        """Of the tokens that repeat and whose gap is known."""
        return self.idle + self.chance + self.evicted + self.busy


SHARES = (0.5, 0.75, 0.9, 0.95, 0.99)


def retention(turns: Sequence[Turn], fates: Fates, keep: float) -> Retention:
    """With the settings that ``fates`` were found by."""
    told = [turn for turn in turns if turn.index and turn.gap is not None and not turn.busy]
    repeated = sum(turn.repeated for turn in turns if turn.index)
    by: dict[Fate, int] = dict.fromkeys(Fate, 0)
    for turn, fate in zip(turns, fates.fates, strict=True):
        by[fate] += turn.repeated
    known = sum(by[fate] for fate in (Fate.KEPT, Fate.IDLE, Fate.CHANCE, Fate.EVICTED, Fate.BUSY))
    gaps = even(turn.gap or 0.0 for turn in told)
    gaps_by_tokens = weighted((turn.gap or 0.0, float(turn.repeated)) for turn in told)
    seconds = active_seconds(turns)
    options = tuple(_option(turns, keep, gaps_by_tokens, seconds) for keep in sorted({*KEEPS, keep}))
    mean, most = _pinned(fates.pinned)
    active, at_once = active_at_once(turns) if fates.pinned else (None, None)
    return Retention(
        known=known / repeated if repeated else 0.0,
        gaps=_at(gaps),
        gaps_by_tokens=_at(gaps_by_tokens),
        kept=by[Fate.KEPT] / known if known else 0.0,
        idle=by[Fate.IDLE] / known if known else 0.0,
        chance=by[Fate.CHANCE] / known if known else 0.0,
        evicted=by[Fate.EVICTED] / known if known else 0.0,
        busy=by[Fate.BUSY] / known if known else 0.0,
        options=options,
        chosen=next(option for option in options if option.keep == keep),
        timeline=_thinned(fates.pinned),
        pinned_mean=mean,
        pinned_most=most,
        active=active,
        most=at_once,
    )


def _at(values: Weighted) -> tuple[tuple[float, float], ...]:
    return tuple((share, found) for share in SHARES if (found := values.at(share)) is not None)


def _option(turns: Sequence[Turn], keep: float, gaps_by_tokens: Weighted, active: float) -> Option:
    """The last turn of a conversation pins its KV until ``keep`` is over, unless the client ends it."""
    pins = 0.0
    rests: list[float] = []
    for turn, after in followed(turns):
        gap = after.gap if after is not None else keep
        if gap is not None:
            rests.append(min(gap, keep))
            pins += turn.total * rests[-1]
    return Option(
        keep,
        found=gaps_by_tokens.below(keep),
        pinned=pins / active if active else 0.0,
        held=sum(rests) / len(rests) if rests else 0.0,
    )


def _pinned(steps: Sequence[Pinned]) -> tuple[float | None, int | None]:
    """Mean over time, and most."""
    if len(steps) < 2:
        return None, None
    area = sum(a.tokens * (b.at - a.at) for a, b in pairwise(steps))
    span = steps[-1].at - steps[0].at
    return (area / span if span else None), max(step.tokens for step in steps)


def _thinned(steps: Sequence[Pinned]) -> tuple[Pinned, ...]:
    """Few enough to draw; of each stretch its highest."""
    size = -(-len(steps) // _POINTS) if steps else 1
    return tuple(
        max(steps[start : start + size], key=lambda step: step.tokens) for start in range(0, len(steps), size)
    )
