"""What a sweep is judged by: equal answers, a gain, and that the router's choice never loses. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon_server.bench import arms
from antiphon_server.bench.sweep.record import Against, Cache, Difference, Sweep, against, differences

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """``at_least``: off over reuse at the longest prefix, prefill's cache empty. ``auto_within``: auto over
    off at any length. None: not asked for."""

    at_least: float | None = None
    auto_within: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """``compared``: turns that another arm, repeat or state of the cache had, too. ``gain``: None where no
    arm has one. ``choices``: of the arm that chooses. ``faults``: why a sweep fails. ``unclear``: limits that
    it does not keep, though chance may be the reason: no pass either."""

    compared: int
    differences: tuple[Difference, ...]
    gain: Against | None
    choices: tuple[Against, ...]
    faults: tuple[str, ...]
    unclear: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 1 if self.faults or self.unclear else 0

    def lines(self) -> Iterator[str]:
        """For people; the last line is the one to quote."""
        for note in self.notes:
            yield f"note: {note}"
        for fault in self.faults:
            yield f"FAILED: {fault}"
        for question in self.unclear:
            yield f"UNCLEAR: {question}"
        if not self.compared:
            yield "answers not compared: no turn was asked more than once, take another arm or more --repeat"
        elif not self.differences:
            yield f"answers identical in all arms: {self.compared} turns, token by token"
        for one in self.choices:
            yield told(one)
        if self.gain is not None:
            yield told(self.gain)


def verdict(sweep: Sweep, limits: Limits) -> Verdict:
    """Judge it."""
    found = differences(sweep)
    gain = _gain(sweep)
    choices = tuple(against(sweep, sweep.choosing, arms.OFF)) if sweep.choosing and _off(sweep) else ()
    slower = tuple(_slower(choices, limits.auto_within))
    return Verdict(
        compared=_compared(sweep),
        differences=tuple(found),
        gain=gain,
        choices=choices,
        faults=(*_differing(sweep, found), *_missing(sweep), *_small(gain, limits.at_least), *slower),
        unclear=tuple(_unclear(choices, limits.auto_within)),
        notes=(*sweep.notes, *_not_reused(sweep)),
    )


def told(one: Against) -> str:
    """A ratio with where it is from."""
    return f"{one.upper} / {one.lower} at {one.length} tokens, {where(one.cache)}: {one.ratio}"


def where(cache: Cache) -> str:
    """A state of prefill's cache, in words."""
    return "first turns" if cache is Cache.FIRST else f"prefill's cache {cache}"


def _compared(sweep: Sweep) -> int:
    asked = Counter((t.place.length, t.place.conversation, t.place.turn) for t in sweep.turns)
    return sum(times for times in asked.values() if times > 1)


def _off(sweep: Sweep) -> bool:
    return arms.OFF in sweep.arms


def _gain(sweep: Sweep) -> Against | None:
    """At the longest prefix, prefill's cache empty where that was measured."""
    if sweep.gaining is None or not _off(sweep):
        return None
    later = [one for one in against(sweep, arms.OFF, sweep.gaining) if one.cache is not Cache.FIRST]
    empty = [one for one in later if one.cache is Cache.EMPTY]
    return max(empty or later, key=lambda one: one.length, default=None)


def _differing(sweep: Sweep, found: list[Difference]) -> Iterator[str]:
    if not found:
        return
    yield (f"ANSWERS DIFFER in {len(found)} of {len(sweep.turns)} turns: a defect, whatever the times say")
    for one in found[:_SHOWN]:
        place = one.place
        what = "the prompt" if one.at is None else f"token {one.at}"
        yield (
            f"arm {one.arm}, {place.length} tokens, conversation {place.conversation}, turn {place.turn}, "
            f"repeat {place.repeat}, {where(place.cache)}: {what} differs from arm {sweep.arms[0]}"
        )
    if any(one.arm == sweep.arms[0] for one in found):
        yield (
            f"arm {sweep.arms[0]} differs from itself: these engines answer one prompt in several ways "
            "(batches of another size round otherwise), so compare with --clients 1"
        )


def _missing(sweep: Sweep) -> Iterator[str]:
    """A sweep without figures, or without reuse, shows nothing."""
    if not sweep.turns:
        yield "nothing was measured"
    arm = sweep.gaining
    if arm is not None and sweep.turns:
        own = [turn.timed.outcome for turn in sweep.turns if turn.arm == arm and turn.place.turn > 1]
        if not any(outcome.path != "cold" and outcome.matched for outcome in own):
            said = ", ".join(dict.fromkeys(f"{outcome.path} ({outcome.reason})" for outcome in own))
            yield f"arm {arm} reused nothing: {said}"


def _small(gain: Against | None, least: float | None) -> Iterator[str]:
    if least is None:
        return
    if gain is None:
        yield "--at-least needs an arm with reuse and one without: name them by --router off=... reuse=..."
    elif gain.ratio.value < least:
        yield f"{told(gain)} is below the {least:g} that was asked for"


def _slower(choices: tuple[Against, ...], within: float | None) -> Iterator[str]:
    if within is not None and not choices:
        yield "--auto-within needs the arms off and auto: name them by --router off=... auto=..."
    for one in choices:
        if within is not None and one.ratio.value > within and one.ratio.low > 1.0:
            yield f"{told(one)} is above the {within:g} that was asked for"


def _unclear(choices: tuple[Against, ...], within: float | None) -> Iterator[str]:
    for one in choices:
        if within is not None and one.ratio.value > within and one.ratio.low <= 1.0:
            yield (
                f"{told(one)}: above the {within:g} that was asked for, but the pairs scatter so much that "
                "it may be chance: measure again with more --repeat, and with nothing else on the machine"
            )


def _not_reused(sweep: Sweep) -> Iterator[str]:
    for arm in (arms.REUSE, arms.APPEND):
        own = [turn for turn in sweep.turns if turn.arm == arm and turn.place.turn > 1]
        other = [turn for turn in own if turn.timed.outcome.path != arm]
        if other:
            said = dict.fromkeys(f"{t.timed.outcome.path} ({t.timed.outcome.reason})" for t in other)
            yield f"arm {arm}: {len(other)} of {len(own)} later turns took another path: {', '.join(said)}"
