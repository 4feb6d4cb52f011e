"""What a sweep measured, and what follows from it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from antiphon_server.bench.conditions import Conditions
from antiphon_server.bench.counters import Counters
from antiphon_server.bench.timing import Timed


class Cache(StrEnum):
    """State of prefill's own prefix cache when the second turn comes."""

    EMPTY = "empty"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class Sample:
    """A second turn, measured once. ``prefill``: what its counters say of it; ``decode`` likewise."""

    target: int
    cache: Cache
    reuse: bool
    timed: Timed
    prefill: Counters
    decode: Counters


@dataclass(frozen=True, slots=True)
class Side:
    """Medians over the repeats of one way to serve the turn. Seconds, tokens, bytes.

    ``leg``: prefill's part. ``received``, ``receiving``: KV from decode to prefill and the time it took.
    """

    ttft: float
    leg: float
    computed: float
    received: float
    receiving: float
    outcome: str


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt length. ``same``: all answers of all repeats, cold and with reuse, are equal."""

    cache: Cache
    tokens: int
    cold: Side
    reuse: Side
    reused: bool
    same: bool

    @property
    def ratio(self) -> float:
        """TTFT cold over TTFT with reuse."""
        return self.cold.ttft / self.reuse.ttft


@dataclass(frozen=True, slots=True)
class Sweep:
    """All of a bench. ``new``: tokens of the second message. ``answer``: tokens of the first answer."""

    rows: tuple[Row, ...]
    new: int
    answer: int
    repeat: int
    samples: tuple[Sample, ...]
    conditions: Conditions

    @property
    def identical(self) -> bool:
        return bool(self.rows) and all(row.same for row in self.rows)

    @property
    def reused(self) -> bool:
        return any(row.reused for row in self.rows)

    @property
    def longest(self) -> Row:
        """The longest prompt, prefill's cache empty where that was measured."""
        empty = [row for row in self.rows if row.cache is Cache.EMPTY]
        return max(empty or self.rows, key=lambda row: row.tokens)


def exit_code(sweep: Sweep, at_least: float | None) -> int:
    """1 when an answer differs, nothing was reused, or the gain is below ``at_least``."""
    enough = at_least is None or sweep.longest.ratio >= at_least
    return 0 if sweep.identical and sweep.reused and enough else 1


def rows_of(samples: Sequence[Sample]) -> tuple[Row, ...]:
    """One row for each cache state and length, in the order measured."""
    keys = dict.fromkeys((sample.cache, sample.target) for sample in samples)
    ordered = sorted(keys, key=lambda key: (key[0] is not Cache.EMPTY, key[1]))
    return tuple(_row(cache, target, samples) for cache, target in ordered)


def _row(cache: Cache, target: int, samples: Sequence[Sample]) -> Row:
    # Answers are compared over both cache states: all four ways must say the same.
    of_length = [sample for sample in samples if sample.target == target]
    own = [sample for sample in of_length if sample.cache is cache]
    cold, reuse = ([sample for sample in own if sample.reuse is reuse] for reuse in (False, True))
    first = of_length[0].timed
    return Row(
        cache=cache,
        tokens=round(statistics.median(sample.timed.prompt_tokens for sample in own)),
        cold=_side(cold),
        reuse=_side(reuse),
        reused=all(s.timed.outcome.path == "reuse" and s.timed.outcome.matched > 0 for s in reuse),
        same=all(s.timed.prompt == first.prompt and s.timed.answer.equals(first.answer) for s in of_length),
    )


def _side(samples: Sequence[Sample]) -> Side:
    outcomes = dict.fromkeys(f"{s.timed.outcome.path} ({s.timed.outcome.reason})" for s in samples)
    return Side(
        ttft=_median(s.timed.ttft for s in samples),
        leg=_median(s.prefill.busy for s in samples),
        computed=_median(s.prefill.computed for s in samples),
        received=_median(s.prefill.received for s in samples),
        receiving=_median(s.prefill.receiving for s in samples),
        outcome=", ".join(outcomes),
    )


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))
