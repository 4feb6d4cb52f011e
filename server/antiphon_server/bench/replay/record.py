"""What a replay saw, and what follows from it. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon_server.bench.conditions import Conditions
from antiphon_server.bench.replay.difference import Difference
from antiphon_server.bench.turn_class import CLASSES, FIRST, class_of
from antiphon_server.counters import Counters
from antiphon_server.quantiles import quantile

AFTER = "2+"
KINDS = (*CLASSES, AFTER)
"""Of turns, by their place in the conversation. ``2+``: all but first turns."""
_REUSING = ("append", "reuse")


@dataclass(frozen=True, slots=True)
class Served:
    """One turn. Seconds, tokens. ``turn``: from 1. ``at``: of its request, since the replay began. ``gap``:
    waited before. ``matched``: prompt tokens that nobody computed anew: as the router says, else as
    the usage does. ``held``: tokens whose KV decode had. ``pace``: inter-token latency, mean. ``longest``:
    between two chunks. ``error``: why there is no answer."""

    conversation: str
    turn: int
    arm: str
    at: float
    gap: float
    ttft: float = 0.0
    total: float = 0.0
    prompt: int = 0
    answer: int = 0
    path: str = "unknown"
    reason: str = "unknown"
    matched: int = 0
    held: int | None = None
    pace: float | None = None
    longest: float | None = None
    error: str | None = None

    @property
    def kind(self) -> str:
        """Its class; not ``2+``, which is two of them."""
        return class_of(self.turn)


@dataclass(frozen=True, slots=True)
class Row:
    """One class of turns of one arm. Seconds. ``reused``: share of the turns that took decode's KV (where the
    server names no path: that had anything cached). ``cached``: share of their prompts' tokens that were not
    computed, whosever cache had them."""

    arm: str
    kind: str
    turns: int
    ttft: float
    p95: float
    p99: float
    mean: float
    wait: float
    wait_p99: float
    prompt: float
    reused: float
    cached: float


@dataclass(frozen=True, slots=True)
class Total:
    """One arm. ``seconds``: that it was being asked. ``left_out``: turns never asked, since one before them
    failed. ``matched``, ``held``: tokens, over turns that say what was held. ``outcomes``: turns by path and
    reason. ``prefill``, ``decode``: what the engines' own counters say. ``declined``: why its router did not
    append, in turns; other clients' are among them."""

    arm: str
    turns: int
    errors: int
    left_out: int
    seconds: float
    prompt_tokens: int
    answer_tokens: int
    matched: int
    held: int
    outcomes: Mapping[str, int]
    prefill: Counters | None = None
    decode: Counters | None = None
    declined: Mapping[str, int] = field(default_factory=dict)

    @property
    def turns_per_second(self) -> float:
        return self.turns / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of answers."""
        return self.answer_tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median TTFT of arm ``slow`` over that of ``fast``, turns 2+. ``paired``: median of the same turns' own
    ratios. ``least``: what was asked for."""

    slow: str
    fast: str
    medians: float
    paired: float
    least: float | None = None

    @property
    def enough(self) -> bool:
        return self.least is None or self.medians >= self.least


@dataclass(frozen=True, slots=True)
class Idle:
    """``turns``: later ones, all without reuse. ``outcomes``: these by path and reason, most frequent first.
    ``chosen``: all by the router's own choice, which is no fault."""

    arm: str
    turns: int
    outcomes: Mapping[str, int]
    chosen: bool

    def __str__(self) -> str:
        told = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        if self.chosen:
            return f"{self.arm} reused nothing, as plain P/D was expected to be faster: {told}"
        return (
            f"{self.arm} reused nothing in {self.turns} later turns: {told}. The router's log has the causes "
            "(an arm that is not to reuse: name it off or cold)"
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """``sources``: what was read. ``setting``: how it was replayed, for people. ``compared``: turns whose
    answers were compared between arms. ``stopped``: why it ended before its end. ``idle``: arms that were to
    reuse and never did."""

    sources: tuple[str, ...]
    setting: tuple[str, ...]
    arms: tuple[str, ...]
    rows: tuple[Row, ...]
    totals: tuple[Total, ...]
    ratios: tuple[Ratio, ...]
    compared: int
    differences: tuple[Difference, ...]
    conditions: Conditions
    turns: tuple[Served, ...]
    stopped: str | None = None
    idle: tuple[Idle, ...] = ()

    @property
    def errors(self) -> int:
        return sum(total.errors for total in self.totals)


def exit_code(replay: Replay) -> int:
    """1: an answer differs, a turn failed, it was stopped, an arm reused nothing, or a ratio is below what
    was asked for."""
    enough = all(ratio.enough for ratio in replay.ratios)
    idle = any(not one.chosen for one in replay.idle)
    faults = replay.differences or replay.errors or replay.stopped or idle
    return 0 if enough and not faults else 1


def rows_of(
    arms: Sequence[str], turns: Sequence[Served], waits: Mapping[tuple[str, str], Sequence[float]]
) -> tuple[Row, ...]:
    """``waits``: inter-token latencies by arm and class."""
    found = []
    for kind in KINDS:
        for arm in arms:
            own = [t for t in turns if t.arm == arm and t.error is None and _is(t, kind)]
            if own:
                heard = [w for (a, k), some in waits.items() if a == arm and _covers(kind, k) for w in some]
                found.append(_row(arm, kind, own, heard))
    return tuple(found)


def total_of(
    arm: str,
    turns: Sequence[Served],
    *,
    planned: int,
    seconds: float,
    prefill: Counters | None = None,
    decode: Counters | None = None,
    declined: Mapping[str, int] | None = None,
) -> Total:
    """``planned``: turns that were to be asked."""
    own = [turn for turn in turns if turn.arm == arm]
    good = [turn for turn in own if turn.error is None]
    told = [turn for turn in good if turn.held is not None]
    return Total(
        arm,
        turns=len(good),
        errors=len(own) - len(good),
        left_out=planned - len(own),
        seconds=seconds,
        prompt_tokens=sum(turn.prompt for turn in good),
        answer_tokens=sum(turn.answer for turn in good),
        matched=sum(turn.matched for turn in told),
        held=sum(turn.held or 0 for turn in told),
        outcomes=dict(Counter(f"{turn.path} ({turn.reason})" for turn in good).most_common()),
        prefill=prefill,
        decode=decode,
        declined=declined or {},
    )


def ratio_of(slow: str, fast: str, turns: Sequence[Served], least: float | None = None) -> Ratio | None:
    """None: the two arms have no turn 2+ in common."""
    by_arm = {
        arm: {
            (t.conversation, t.turn): t.ttft for t in turns if t.arm == arm and t.error is None and t.turn > 1
        }
        for arm in (slow, fast)
    }
    both = [key for key in by_arm[slow] if key in by_arm[fast]]
    if not both:
        return None
    slower, faster = ([by_arm[arm][key] for key in both] for arm in (slow, fast))
    return Ratio(
        slow,
        fast,
        statistics.median(slower) / statistics.median(faster),
        statistics.median(a / b for a, b in zip(slower, faster, strict=True)),
        least,
    )


def _is(turn: Served, kind: str) -> bool:
    return _covers(kind, turn.kind)


def _covers(kind: str, own: str) -> bool:
    return own == kind or (kind == AFTER and own != FIRST)


def _row(arm: str, kind: str, own: Sequence[Served], waits: Sequence[float]) -> Row:
    ttft = [turn.ttft for turn in own]
    prompt = sum(turn.prompt for turn in own)
    reused = [t for t in own if t.path in _REUSING or (t.path == "unknown" and t.matched > 0)]
    return Row(
        arm,
        kind,
        turns=len(own),
        ttft=statistics.median(ttft),
        p95=quantile(ttft, 0.95, 0.0),
        p99=quantile(ttft, 0.99, 0.0),
        mean=math.fsum(ttft) / len(ttft),
        wait=statistics.median(waits) if waits else 0.0,
        wait_p99=quantile(waits, 0.99, 0.0),
        prompt=statistics.median(turn.prompt for turn in own),
        reused=len(reused) / len(own),
        cached=sum(turn.matched for turn in own) / prompt if prompt else 0.0,
    )
