"""What a sweep measured: turns, and what follows from them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from antiphon_server.bench import arms
from antiphon_server.bench.conditions import Conditions
from antiphon_server.bench.sweep.plan import Plan
from antiphon_server.bench.sweep.statistics import Quartiles, Ratio, quartiles, ratio
from antiphon_server.bench.timing import Timed
from antiphon_server.counters import Counters
from antiphon_server.quantiles import quantile


class Cache(StrEnum):
    """What prefill's own prefix cache has of a turn's prompt. ``first``: a conversation's first turn, of
    which nobody has anything."""

    EMPTY = "empty"
    WARM = "warm"
    FIRST = "first"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the sweep a turn stands, but for its arm. ``turn``: from 1."""

    phase: Cache
    length: int
    repeat: int
    conversation: int
    turn: int

    @property
    def cache(self) -> Cache:
        return Cache.FIRST if self.turn == 1 else self.phase


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. ``prefill``, ``decode``: what those engines' counters say of it; where several turns ran at
    once, each has its equal share of theirs."""

    arm: str
    place: Place
    timed: Timed
    prefill: Counters
    decode: Counters


@dataclass(frozen=True, slots=True)
class Parts:
    """TTFT, in seconds, by what it was spent on: medians of the turns. ``prefill``, ``decode``: computing on
    these engines until the first token; ``to_prefill``, ``to_decode``: KV between them; ``rest``: what is
    left of the median TTFT: HTTP, router, tokenizers, waiting. ``leg``: all of the prefill engine's part."""

    prefill: float
    to_prefill: float
    decode: float
    to_decode: float
    rest: float
    leg: float


@dataclass(frozen=True, slots=True)
class Cell:
    """Turns of one arm at one length and state of prefill's cache. ``gaps``: inter-token latency, seconds,
    and its 99th percentile. Medians: ``prompt``, ``computed`` (by prefill), ``matched``: tokens;
    ``received``: bytes of KV from decode to prefill. ``paths``: turns by path and reason."""

    cache: Cache
    length: int
    arm: str
    ttft: Quartiles
    ttft_p99: float
    gaps: Quartiles | None
    gaps_p99: float | None
    parts: Parts
    prompt: float
    computed: float
    appended: float
    matched: float
    received: float
    paths: dict[str, int]


@dataclass(frozen=True, slots=True)
class Difference:
    """A turn that was answered otherwise than in the first arm. ``at``: first token that differs; None: the
    prompts differ already."""

    arm: str
    place: Place
    at: int | None


@dataclass(frozen=True, slots=True)
class Against:
    """TTFT of one arm over that of another, turn by turn."""

    cache: Cache
    length: int
    upper: str
    lower: str
    ratio: Ratio


@dataclass(frozen=True, slots=True)
class Sweep:
    """All of a sweep. ``notes``: what a reader must know besides."""

    name: str
    plan: Plan
    arms: tuple[str, ...]
    conditions: Conditions
    turns: tuple[Turn, ...]
    notes: tuple[str, ...] = ()

    @property
    def caches(self) -> tuple[Cache, ...]:
        """Those of later turns, in order."""
        found = {turn.place.phase for turn in self.turns}
        return tuple(cache for cache in Cache if cache in found)

    @property
    def gaining(self) -> str | None:
        """The arm whose gain over ``off`` is told."""
        return next((a for a in (arms.REUSE, arms.CONFIGURED, arms.AUTO) if a in self.arms), None)

    @property
    def choosing(self) -> str | None:
        """The arm that must never lose against ``off``."""
        return next((arm for arm in (arms.AUTO, arms.CONFIGURED) if arm in self.arms), None)


def cells(sweep: Sweep) -> Iterator[Cell]:
    """By state of prefill's cache, length and arm."""
    for cache in (*sweep.caches, Cache.FIRST):
        for length in sweep.plan.lengths:
            for arm in sweep.arms:
                own = [
                    turn
                    for turn in sweep.turns
                    if (turn.place.cache, turn.place.length, turn.arm) == (cache, length, arm)
                ]
                if own:
                    yield _cell(cache, length, arm, own)


def differences(sweep: Sweep) -> list[Difference]:
    """Turns of the same place are to be answered alike in all arms, repeats and states of the cache."""
    first: dict[tuple[int, int, int], Timed] = {}
    found: list[Difference] = []
    for turn in sorted(sweep.turns, key=lambda turn: turn.arm != sweep.arms[0]):
        place = turn.place
        wanted = first.setdefault((place.length, place.conversation, place.turn), turn.timed)
        if turn.timed.prompt != wanted.prompt:
            found.append(Difference(turn.arm, place, None))
        elif not turn.timed.answer.equals(wanted.answer):
            ids, others = turn.timed.answer.ids, wanted.answer.ids
            at = next((i for i, (a, b) in enumerate(zip(ids, others, strict=False)) if a != b), None)
            found.append(Difference(turn.arm, place, min(len(ids), len(others)) if at is None else at))
    return found


def against(sweep: Sweep, upper: str, lower: str) -> list[Against]:
    """``upper`` over ``lower``, by state of prefill's cache and length."""
    found: list[Against] = []
    ttft = {(turn.arm, turn.place): turn.timed.ttft for turn in sweep.turns}
    for cache in (*sweep.caches, Cache.FIRST):
        for length in sweep.plan.lengths:
            pairs = [
                (seconds, ttft[lower, place])
                for (arm, place), seconds in ttft.items()
                if arm == upper and (place.cache, place.length) == (cache, length) and (lower, place) in ttft
            ]
            if pairs:
                found.append(Against(cache, length, upper, lower, ratio(pairs)))
    return found


def _cell(cache: Cache, length: int, arm: str, turns: Sequence[Turn]) -> Cell:
    ttft = [turn.timed.ttft for turn in turns]
    gaps = [wait for turn in turns for wait in turn.timed.waits]
    middle = quartiles(ttft)
    return Cell(
        cache=cache,
        length=length,
        arm=arm,
        ttft=middle,
        ttft_p99=quantile(ttft, 0.99, 0.0),
        gaps=quartiles(gaps) if gaps else None,
        gaps_p99=quantile(gaps, 0.99, None),
        parts=_parts(middle.median, turns),
        prompt=_median(turn.timed.prompt_tokens for turn in turns),
        computed=_median(turn.prefill.computed for turn in turns),
        appended=_median(turn.decode.computed for turn in turns),
        matched=_median(turn.timed.outcome.matched for turn in turns),
        received=_median(turn.prefill.received for turn in turns),
        paths=dict(Counter(f"{t.timed.outcome.path} ({t.timed.outcome.reason})" for t in turns)),
    )


def _parts(ttft: float, turns: Sequence[Turn]) -> Parts:
    known = (
        _median(turn.prefill.computing for turn in turns),
        _median(turn.prefill.receiving for turn in turns),
        _median(turn.decode.computing for turn in turns),
        _median(turn.decode.receiving for turn in turns),
    )
    leg = _median(turn.prefill.busy for turn in turns)
    return Parts(*known, rest=max(0.0, ttft - sum(known)), leg=leg)


def _median(values: Iterator[float] | Iterator[int]) -> float:
    return quartiles(values).median
