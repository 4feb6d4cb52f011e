"""Measured rates: how long a leg will take on an engine, learnt from the legs it has served.

One model for all: seconds are a sum of non-negative parts, each in proportion to one feature of the leg. It
is fitted by least squares on *relative* errors, so that short legs count as much as long ones, and it
forgets, so that it follows an engine that slows down. Features are thousands of tokens, or tens of streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from antiphon_server.router.plan.backlog import Backlog, Spell
from antiphon_server.router.plan.trials import Trials

_SWEEPS = 40
_SETTLED = 32
_EVERY = 8
"""A fit of so many samples moves little with one more: its parts are found anew at every eighth."""
_HEAVIEST = 1e9
_SHORTEST = 1e-4
"""Seconds; a leg is never taken for shorter."""
_PRIOR = 0.001
"""Of a sample, that what is usual counts for."""
_TOKENS_PER_BYTE = 0.25
"""Of a request's history, as long as none was seen."""


class Fit:
    """``seconds = sum(part[i] * feature[i])``. ``forget``: weight that a sample keeps at each later one.

    An outlier (more than ``clip`` times what was expected, e.g. an engine that paused, or less than that part
    of it) counts as ``clip`` times only. ``usual``: by feature, which multiple of the second part its own
    usually is. It counts as a small share of one sample, so it tells only where samples do not: else a part
    that was seen in small amounts only would take up what they leave unexplained, and be wrong by orders for
    large ones.
    """

    def __init__(
        self, features: int, *, forget: float = 0.97, clip: float = 4.0, usual: Mapping[int, float] = {}
    ) -> None:
        self._forget = forget
        self.clip = clip
        self._usual = usual
        self._products = [[0.0] * features for _ in range(features)]
        self._targets = [0.0] * features
        self._weight = 1.0
        self.parts = [0.0] * features
        self.samples = 0

    @property
    def known(self) -> bool:
        """Enough was seen to tell what is fixed from what grows."""
        return self.samples >= 2

    def seconds(self, features: Sequence[float]) -> float:
        """Expected duration."""
        return max(_SHORTEST, sum(map(float.__mul__, self.parts, map(float, features))))

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Learn from one leg."""
        seconds = max(seconds, _SHORTEST)
        if self.samples >= 4:
            expected = self.seconds(features)
            seconds = min(max(seconds, expected / self.clip), self.clip * expected)
        # The newest sample weighs more and more, so that the others need not be made to weigh less.
        self._weight /= self._forget
        if self._weight > _HEAVIEST:
            self._lighten()
        scaled = [(i, feature / seconds) for i, feature in enumerate(features) if feature]
        for i, left in scaled:
            weighted, row = self._weight * left, self._products[i]
            self._targets[i] += weighted
            for j, right in scaled:
                row[j] += weighted * right
        self.samples += 1
        if self.samples < _SETTLED or self.samples % _EVERY == 0:
            self._solve()

    def _lighten(self) -> None:
        weight, self._weight = self._weight, 1.0
        self._products = [[product / weight for product in row] for row in self._products]
        self._targets = [target / weight for target in self._targets]

    def _solve(self) -> None:
        """Coordinate descent; starts from the last solution, which is close."""
        parts, size, prior = self.parts, range(len(self.parts)), _PRIOR * self._weight
        usual = {i: ratio * parts[1] for i, ratio in self._usual.items() if parts[1] > 0.0}
        for _ in range(_SWEEPS):
            moved = 0.0
            for i in size:
                row = self._products[i]
                if row[i] <= 0.0:
                    continue
                others = sum(map(float.__mul__, row, parts)) - row[i] * parts[i]
                target, weight = self._targets[i] - others, row[i]
                if i in usual:
                    target, weight = target + prior / usual[i], weight + prior / usual[i] ** 2
                old, parts[i] = parts[i], target / weight if target > 0.0 else 0.0
                change = abs(parts[i] - old) / (parts[i] + old + 1e-12)
                if change > moved:
                    moved = change
            if moved < 1e-3:
                return


@dataclass(frozen=True, slots=True)
class Work:
    """A leg, in tokens. ``new``: to be computed. ``context``: length of the whole prompt. ``pulled``: fetched
    from another engine. ``ahead``: being computed there already for others. ``streams``: others that decode
    there."""

    new: int
    context: int
    pulled: int = 0
    ahead: int = 0
    streams: int = 0

    @property
    def features(self) -> tuple[float, ...]:
        """Fixed cost; tokens that pass through the model; attention of each to its past; tokens that are
        moved; other streams that share the steps; that anything is moved at all, which takes its time
        however little it is; the prompt's whole length, which is tokenised, hashed and looked up."""
        through, attention = self.features_of_new
        return (
            1.0,
            through + self.ahead / 1e3,
            attention,
            self.pulled / 1e3,
            self.streams / 10,
            1.0 if self.pulled > 0 else 0.0,
            self.context / 1e3,
        )

    @property
    def features_of_new(self) -> tuple[float, float]:
        """Of what is computed for this leg: tokens through the model, attention to their past."""
        return self.new / 1e3, self.new * (self.context - self.new / 2) / 1e6


_FEATURES = 7
_USUAL = {3: 1 / 8, 5: 1 / 20, 6: 1 / 50}
"""Moving a token costs an eighth of computing it, and to begin to move as much as computing fifty; to read
it in the request costs a fiftieth."""


def _fit() -> Fit:
    return Fit(_FEATURES, usual=_USUAL)


class Rates:
    """What is known of every engine, by its name. ``clock``: monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._prefill: dict[str, Fit] = {}
        self._handed_over: dict[str, Fit] = {}
        self._append: dict[str, Fit] = {}
        self._local: dict[tuple[str, bool | None], float] = {}
        self._backlogs: dict[str, Backlog] = {}
        self._trials: dict[str, Trials] = {}
        self.per_byte = _TOKENS_PER_BYTE
        """Tokens that a byte of a request's history comes to."""

    def prefill(self, worker: str, work: Work) -> float | None:
        """Seconds of a prefill leg; None while nothing is known."""
        return _expected(self._prefill.get(worker), work)

    def handed_over(self, worker: str, work: Work) -> float | None:
        """Seconds from a decode leg's start to its first byte, after prefill; what the engine computes for
        others then comes first."""
        seconds = _expected(self._handed_over.get(worker), work)
        return None if seconds is None else seconds + self.wait(worker)

    def append(self, worker: str, work: Work) -> float | None:
        """Seconds from a decode leg's start to its first byte, without prefill."""
        return _expected(self._append.get(worker), work)

    def burden(self, worker: str, work: Work) -> float | None:
        """Seconds of a decode engine's time that an append takes from its other streams: what is new of it,
        not what it waits for itself."""
        fit = self._append.get(worker)
        if fit is None or not fit.known:
            return None
        return fit.parts[1] * work.features_of_new[0] + fit.parts[2] * work.features_of_new[1]

    def trials(self, worker: str) -> Trials:
        """When a decode engine's appends are tried though they are expected to be slower."""
        return self._trials.setdefault(worker, Trials())

    def recompute(self, tokens: int) -> float | None:
        """Seconds that a prefill engine takes for a prompt, on average over the engines."""
        work = Work(tokens, tokens)
        known = [s for fit in self._prefill.values() if (s := _expected(fit, work)) is not None]
        return sum(known) / len(known) if known else None

    def local_share(self, worker: str, *, same: bool | None) -> float:
        """Share of a conversation's tokens that a prefill engine finds in its own cache. ``same``: it served
        the last turn; None: nothing is kept of one, and the share is that of the whole prompt."""
        return self._local.get((worker, same), 0.0)

    def ahead(self, worker: str) -> int:
        """Tokens that an engine has still to compute for others."""
        backlog = self._backlogs.get(worker)
        return backlog.left(self._rate(worker), self._clock()) if backlog is not None else 0

    def wait(self, worker: str) -> float:
        """Seconds that this takes; 0 as long as the engine's rate is unknown."""
        rate = self._rate(worker)
        return self.ahead(worker) / rate if rate else 0.0

    @contextmanager
    def computing(self, worker: str, tokens: int) -> Iterator[Spell]:
        """The time that an engine computes ``tokens`` tokens."""
        spell = self.begin(worker, tokens)
        try:
            yield spell
        finally:
            self.end(worker, spell)

    def begin(self, worker: str, tokens: int) -> Spell:
        """An engine computes ``tokens`` tokens from now on, until :meth:`end`."""
        backlog = self._backlogs.get(worker)
        if backlog is None:
            backlog = self._backlogs[worker] = Backlog()
        return backlog.add(tokens, self._clock())

    def end(self, worker: str, spell: Spell) -> None:
        """It has, or has given up. Harmless if that was said already."""
        if spell.over:
            return
        backlog = self._backlogs[worker]
        backlog.remove(spell, self._clock())
        if not backlog:
            del self._backlogs[worker]

    def own(self, worker: str, spell: Spell) -> float | None:
        """Seconds that an engine took for a leg that ends now, without those before it; None where that
        cannot be told."""
        backlog = self._backlogs.get(worker)
        return backlog.own(spell, self._clock()) if backlog is not None else None

    def saw_prefill(self, worker: str, work: Work, seconds: float, *, waited: bool = False) -> None:
        """A prefill leg took ``seconds``, without the :meth:`wait` before it. ``waited``: there was one, so
        that the leg may have shared a step with the one before, and then seems too short."""
        _learn(self._prefill.setdefault(worker, _fit()), work, seconds, waited)

    def saw_handed_over(self, worker: str, work: Work, seconds: float) -> None:
        """A decode leg's first byte came after ``seconds``; nothing was before it."""
        _learn(self._handed_over.setdefault(worker, _fit()), work, seconds, False)

    def saw_append(self, worker: str, work: Work, seconds: float, *, waited: bool = False) -> None:
        """The first byte of a decode leg without prefill came after ``seconds``, as with prefill."""
        _learn(self._append.setdefault(worker, _fit()), work, seconds, waited)
        self.trials(worker).measured()

    def saw_local(self, worker: str, share: float, *, same: bool | None) -> None:
        """A prefill engine had this share of a conversation's tokens."""
        before = self._local.get((worker, same))
        self._local[worker, same] = share if before is None else before + 0.2 * (share - before)

    def saw_prompt(self, tokens: int, size: int) -> None:
        """A history of ``size`` bytes came to so many tokens."""
        if tokens > 0 and size > 0:
            self.per_byte += 0.1 * (tokens / size - self.per_byte)

    def forget(self, worker: str) -> None:
        """The engine has a new life, or is gone."""
        for fits in (self._prefill, self._handed_over, self._append):
            fits.pop(worker, None)
        self._trials.pop(worker, None)
        for same in (True, False, None):
            self._local.pop((worker, same), None)

    def figures(self) -> Iterator[tuple[str, str, float]]:
        """(worker, what, tokens/s) for the metrics, of those that are known."""
        for what, fits, part in (
            ("prefill", self._prefill, 1),
            ("pull", self._prefill, 3),
            ("handed_over", self._handed_over, 3),
            ("append", self._append, 1),
        ):
            for worker, fit in fits.items():
                if fit.known and fit.parts[part] > 0:
                    yield worker, what, 1e3 / fit.parts[part]

    def _rate(self, worker: str) -> float | None:
        """Tokens a second."""
        for fits in (self._prefill, self._append):
            fit = fits.get(worker)
            if fit is not None and fit.known and fit.parts[1] > 0:
                return 1e3 / fit.parts[1]
        return None


def _expected(fit: Fit | None, work: Work) -> float | None:
    return fit.seconds(work.features) if fit is not None and fit.known else None


def _learn(fit: Fit, work: Work, seconds: float, waited: bool) -> None:
    features = work.features
    if not (waited and fit.known and seconds < fit.seconds(features) / fit.clip):
        fit.observe(features, seconds)
