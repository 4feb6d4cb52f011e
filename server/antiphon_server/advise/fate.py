"""What became of the KV of each turn's conversation before that turn came: the router's own decisions, over
the log's times. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from antiphon_server.advise.turn import Turn
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.keep.retention import Retention, victims
from antiphon_server.router.keep.returns import Returns
from antiphon_server.router.store.frontier import Frontier

_SLACK = 0.05
"""Of the budget that is given up beyond what must, so that the next turn need not look again."""


class Fate(StrEnum):
    """``first``: there was nothing. ``kept``: it was there. ``idle``: it was given up, as the gap was longer
    than ``keep``. ``chance``: the lease was not renewed, as hardly any conversation comes back after so long.
    ``evicted``: the budget went to others. ``busy``: the turn before it was in flight still. ``unknown``: the
    log has no time."""

    FIRST = "first"
    KEPT = "kept"
    IDLE = "idle"
    CHANCE = "chance"
    EVICTED = "evicted"
    BUSY = "busy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Keep:
    """As the router's settings of these names; seconds. ``budget``: tokens that resting conversations may
    hold on all decode engines together, None: no limit."""

    keep: float = 480.0
    least_chance: float = 0.01
    renew_interval: float = 15.0
    lease_ttl: float = 60.0
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class Pinned:
    """Tokens pinned from this time on, by conversations at rest."""

    at: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Fates:
    """``fates``: of each turn, in the order given. ``pinned``: over time; empty without
    a clock."""

    fates: tuple[Fate, ...]
    pinned: tuple[Pinned, ...]


def fates(turns: Sequence[Turn], keep: Keep, *, clock: bool) -> Fates:
    """``clock``: every turn has a time, and these tell what ran at once. Then all conversations are followed
    side by side, with the budget; else each gap is judged by itself."""
    if clock:
        return _Replay(turns, keep).run()
    return Fates(tuple(_alone(turn, keep.keep) for turn in turns), ())


def supposed(fates: Sequence[Fate]) -> tuple[Fate, ...]:
    """Those that the log does not tell share what became of the others, spread evenly over them."""
    known = [fate for fate in fates if fate not in {Fate.FIRST, Fate.UNKNOWN}]
    share = known.count(Fate.KEPT) / len(known) if known else 0.0
    found, due = [], 0.0
    for fate in fates:
        if known and fate is Fate.UNKNOWN:
            due += share
            fate = Fate.KEPT if due >= 0.5 else Fate.IDLE
            due -= fate is Fate.KEPT
        found.append(fate)
    return tuple(found)


def _alone(turn: Turn, keep: float) -> Fate:
    if not turn.index:
        return Fate.FIRST
    if turn.busy:
        return Fate.BUSY
    if turn.gap is None:
        return Fate.UNKNOWN
    return Fate.KEPT if turn.gap <= keep else Fate.IDLE


class _Replay:
    def __init__(self, turns: Sequence[Turn], keep: Keep) -> None:
        self._turns = turns
        self._keep = keep
        self._returns = Returns(limit=1_000_000)
        self._retention = Retention(self._returns.chance, keep.keep, keep.least_chance)
        self._held: dict[int, Frontier] = {}
        self._total = 0
        self._gone: dict[int, Fate] = {}
        self._pinned: list[Pinned] = []
        self._fates = [Fate.FIRST] * len(turns)

    def run(self) -> Fates:
        """Events in order of time; of one moment, ends come first, but for turns that take no time."""
        events: list[tuple[float, int, int]] = []
        for number, turn in enumerate(self._turns):
            begun = turn.at or 0.0
            events += [(begun, 1, number), (begun + (turn.seconds or 0.0), 0, number)]
        events.sort(key=lambda event: (event[0], event[1] if self._lasts(event[2]) else 1 - event[1]))
        expiring: list[tuple[float, int]] = []
        place = 0
        for now, begins, number in events:
            # Idle ones end in the order in which they began, as all may idle for equally long.
            while place < len(expiring) and expiring[place][0] < now:
                self._expire(*expiring[place])
                place += 1
            if begins:
                self._begin(number, now)
            else:
                self._end(number, now)
                expiring.append((now + self._keep.keep, self._turns[number].conversation))
        for end, conversation in expiring[place:]:
            self._expire(end, conversation)
        return Fates(tuple(self._fates), tuple(self._pinned))

    def _lasts(self, number: int) -> bool:
        return bool(self._turns[number].seconds)

    def _begin(self, number: int, now: float) -> None:
        turn = self._turns[number]
        held = self._held.get(turn.conversation)
        if turn.index:
            self._fates[number] = self._fate(turn, held, now)
        self._drop(turn.conversation, now)
        self._gone.pop(turn.conversation, None)
        self._returns.began(_key(turn.conversation), now)

    def _fate(self, turn: Turn, held: Frontier | None, now: float) -> Fate:
        if turn.busy:
            return Fate.BUSY
        if held is None:
            if turn.gap is not None and turn.gap > self._keep.keep:
                return Fate.IDLE
            # Not given up: the last answer's end and this request are one moment.
            return self._gone.get(turn.conversation, Fate.KEPT)
        idle = turn.gap if turn.gap is not None else now - held.idle_since
        if idle > self._keep.keep:
            return Fate.IDLE
        renewed = idle // self._keep.renew_interval * self._keep.renew_interval
        if renewed > self._keep.lease_ttl and not self._retention.hopeful(held, held.idle_since + renewed):
            return Fate.CHANCE
        return Fate.KEPT

    def _end(self, number: int, now: float) -> None:
        turn = self._turns[number]
        key = _key(turn.conversation)
        self._returns.ended(key, now)
        self._drop(turn.conversation, now)
        budget = self._keep.budget
        if budget is not None and turn.total > budget:
            self._gone[turn.conversation] = Fate.EVICTED
            return
        self._held[turn.conversation] = Frontier(
            key, b"", "", "", "", turn.total, math.inf, idle_since=now, prompt_tokens=turn.prompt
        )
        self._total += turn.total
        if budget is not None and self._total > budget:
            excess = self._total - int(budget * (1 - _SLACK))
            others = [f for f in self._held.values() if f.key is not key]
            for frontier in victims(self._retention.ranked(others, now), excess):
                conversation = int(frontier.key.conversation)
                self._drop(conversation, now)
                self._gone[conversation] = Fate.EVICTED
        self._pinned.append(Pinned(now, self._total))

    def _expire(self, now: float, conversation: int) -> None:
        held = self._held.get(conversation)
        if held is not None and held.idle_since + self._keep.keep <= now:
            self._drop(conversation, now)
            self._gone[conversation] = Fate.IDLE

    def _drop(self, conversation: int, now: float) -> None:
        held = self._held.pop(conversation, None)
        if held is not None:
            self._total -= held.tokens
            self._pinned.append(Pinned(now, self._total))


def _key(conversation: int) -> Key:
    return Key("", "", "", str(conversation))
