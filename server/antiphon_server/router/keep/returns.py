"""Whether an idle conversation comes back, learnt from how long others were idle before they did. Pure: times
are passed in.

The hazard of a return is estimated in buckets of idle time, each twice as long as the one before every second
bucket. A conversation that has not returned (still idle, closed, or forgotten) is censored: it counts for the
time that it was watched, and says nothing about later. Old observations fade.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, OrderedDict
from itertools import accumulate

from antiphon_server.router.gate.identity import Key

_FIRST = 0.5
"""Seconds; shorter gaps share the first bucket."""
_BUCKETS = 32
_EDGES = (0.0, *(_FIRST * 2 ** (i / 2) for i in range(_BUCKETS - 1)))
_LONGEST = _EDGES[-1] * 2**0.5
"""Seconds (about six and a half hours) after which a conversation is no longer watched."""
_SLOT = 4.0
"""Seconds. Idle conversations are counted by when they became idle, to this grain."""
_STALE = 5.0
"""Seconds that the estimate may lag behind the observations."""
_PRIOR = 8.0
"""Conversations at risk that the prior is worth in every bucket."""
_RESCALE = 2.0**32

_NEVER = 0.3
_MEDIAN = 20.0
_OWN = 3.0
"""Gaps after which a conversation's own rhythm counts as much as all others'."""
_UNEVEN = 0.5
"""Deviation of log gaps (a factor of 1.6) that halves the trust in a rhythm."""
_LEAST_SPREAD = 0.25


def prior(idle: float) -> float:
    """Share of conversations still idle after so many seconds, before anything is observed: three in ten
    never return, half of the others within 20 s, one in 25 of them after 8 minutes."""
    return _NEVER + (1.0 - _NEVER) / (1.0 + idle / _MEDIAN)


_PRIOR_HAZARDS = tuple(
    1.0 - prior(end) / prior(start) for start, end in zip(_EDGES, (*_EDGES[1:], _LONGEST), strict=True)
)


class Rhythm:
    """Gaps of one conversation: how many, and mean and spread of their logarithms, the newer ones weighing
    more. ``end``: when its last turn ended, None while it is not idle."""

    __slots__ = ("count", "end", "mean", "spread")

    def __init__(self) -> None:
        self.end: float | None = None
        self.count = 0
        self.mean = 0.0
        self.spread = 0.0

    def add(self, gap: float) -> None:
        """Seconds between two turns."""
        value = math.log(max(gap, _FIRST / 4))
        self.count += 1
        weight = max(1.0 / self.count, 0.2)
        off = value - self.mean
        self.mean += weight * off
        self.spread = (1.0 - weight) * (self.spread + weight * off * off)

    @property
    def weight(self) -> float:
        """0 to 1: how far the rhythm tells more than the crowd does."""
        if self.count < 2:
            return 0.0
        even = 1.0 / (1.0 + self.spread / _UNEVEN**2)
        return even * self.count / (self.count + _OWN)

    def chance(self, idle: float, horizon: float) -> float:
        """Of a return within ``horizon``, if gaps are log-normal and each turn may have been the last."""
        over = 1.0 / (self.count + 2.0)
        still, later = self._longer(idle), self._longer(idle + horizon)
        return (1.0 - over) * (still - later) / (over + (1.0 - over) * still)

    def _longer(self, gap: float) -> float:
        if gap <= 0.0:
            return 1.0
        deviation = max(math.sqrt(self.spread), _LEAST_SPREAD)
        return 0.5 * math.erfc((math.log(gap) - self.mean) / (deviation * math.sqrt(2.0)))


class Returns:
    """Chance that a conversation returns, from those this router has seen.

    ``limit``: conversations remembered; the one whose last turn is longest ago is forgotten. ``half_life``:
    seconds after which an observation counts half.
    """

    def __init__(self, limit: int, half_life: float = 6 * 3600.0) -> None:
        self._limit = limit
        self._half_life = half_life
        self._known: OrderedDict[Key, Rhythm] = OrderedDict()
        self._returned = [0.0] * _BUCKETS
        self._censored = [0.0] * _BUCKETS
        self._slots: Counter[int] = Counter()
        self._origin = 0.0
        self._survival = _survival(_PRIOR_HAZARDS)
        self._estimated = -math.inf

    def __len__(self) -> int:
        return len(self._known)

    def began(self, key: Key, now: float) -> None:
        """A turn begins: if the conversation was idle, it has returned."""
        rhythm = self._known.get(key)
        if rhythm is None or rhythm.end is None:
            return
        gap = max(0.0, now - rhythm.end)
        self._wake(rhythm)
        if gap < _LONGEST:
            rhythm.add(gap)
            self._returned[_bucket(gap)] += self._weight(now)

    def ended(self, key: Key, now: float) -> None:
        """The last turn in flight ended: the conversation is idle from now on."""
        rhythm = self._known.pop(key, None)
        if rhythm is None:
            rhythm = Rhythm()
        else:
            self._wake(rhythm)
        self._known[key] = rhythm  # under this turn's key, the same object as in its frontier
        rhythm.end = now
        self._slots[int(now // _SLOT)] += 1
        while len(self._known) > self._limit:
            _, oldest = self._known.popitem(last=False)
            self._censor(oldest, now)

    def closed(self, key: Key, now: float) -> None:
        """The conversation ended: it cannot return, but for so long it had not."""
        rhythm = self._known.pop(key, None)
        if rhythm is not None:
            self._censor(rhythm, now)

    def chance(self, key: Key, idle: float, horizon: float, now: float) -> float:
        """Of a return within ``horizon`` seconds, given that the conversation has been idle for ``idle``."""
        if horizon <= 0.0:
            return 0.0
        if not 0.0 <= now - self._estimated < _STALE:
            self._estimate(now)
        still = _log_survival(self._survival, idle)
        crowd = -math.expm1(_log_survival(self._survival, idle + horizon) - still)
        rhythm = self._known.get(key)
        weight = rhythm.weight if rhythm is not None else 0.0
        if rhythm is None or not weight:
            return crowd
        return weight * rhythm.chance(idle, horizon) + (1.0 - weight) * crowd

    def _wake(self, rhythm: Rhythm) -> None:
        if rhythm.end is None:
            return
        slot = int(rhythm.end // _SLOT)
        rhythm.end = None
        if slot in self._slots:  # else it has been idle for longer than anything is watched
            self._slots[slot] -= 1
            if self._slots[slot] <= 0:
                del self._slots[slot]

    def _censor(self, rhythm: Rhythm, now: float) -> None:
        if rhythm.end is None:
            return
        idle = max(0.0, now - rhythm.end)
        self._wake(rhythm)
        if idle < _LONGEST:
            self._censored[_bucket(idle)] += self._weight(now)

    def _weight(self, now: float) -> float:
        """Of an observation now. Later ones weigh more, which is the same as that older ones fade."""
        weight: float = 2.0 ** min((now - self._origin) / self._half_life, 64.0)
        if weight <= _RESCALE:
            return weight
        self._returned = [value / weight for value in self._returned]
        self._censored = [value / weight for value in self._censored]
        self._origin = now
        return 1.0

    def _estimate(self, now: float) -> None:
        weight = self._weight(now)
        watched = self._censored.copy()
        for slot, count in list(self._slots.items()):
            idle = max(0.0, now - (slot + 0.5) * _SLOT)
            if idle >= _LONGEST:
                self._censored[-1] += count * weight
                watched[-1] += count * weight
                del self._slots[slot]
            else:
                watched[_bucket(idle)] += count * weight
        leaving = [r + c for r, c in zip(self._returned, watched, strict=True)]
        at_risk = list(accumulate(reversed(leaving)))[::-1]
        hazards = [
            # Those censored within a bucket were at risk for half of it on average.
            (returned / weight + _PRIOR * before) / (max(risk - censored / 2, returned) / weight + _PRIOR)
            for returned, censored, risk, before in zip(
                self._returned, watched, at_risk, _PRIOR_HAZARDS, strict=True
            )
        ]
        self._survival = _survival(hazards)
        self._estimated = now


def _bucket(gap: float) -> int:
    return bisect_right(_EDGES, gap) - 1


def _survival(hazards: list[float] | tuple[float, ...]) -> tuple[float, ...]:
    """Logarithm of the share that is still idle at each edge, and at the end of the last bucket."""
    return (0.0, *accumulate(math.log1p(-min(hazard, 1.0 - 1e-9)) for hazard in hazards))


def _log_survival(survival: tuple[float, ...], idle: float) -> float:
    """Between two edges the hazard is constant; after the last nobody returns."""
    if idle >= _LONGEST:
        return survival[-1]
    bucket = _bucket(max(idle, 0.0))
    start = _EDGES[bucket]
    end = _EDGES[bucket + 1] if bucket + 1 < _BUCKETS else _LONGEST
    part = (idle - start) / (end - start)
    return survival[bucket] + part * (survival[bucket + 1] - survival[bucket])
