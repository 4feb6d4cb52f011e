"""Measured rates: how long a leg will take on an engine, learnt from the legs it has served.

One model for all: seconds are a sum of non-negative parts, each in proportion to one feature of the leg. It
is fitted by least squares on *relative* errors, so that short legs count as much as long ones, and it
forgets, so that it follows an engine that slows down. Features are thousands of tokens, or tens of streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_SWEEPS = 40
_SHORTEST = 1e-4
"""Seconds; a leg is never taken for shorter."""


class Fit:
    """``seconds = sum(part[i] * feature[i])``. ``forget``: weight that a sample keeps at each later one.

    An outlier (more than ``clip`` times what was expected, e.g. an engine that paused) counts as ``clip``
    times only.
    """

    def __init__(self, features: int, *, forget: float = 0.97, clip: float = 4.0) -> None:
        self._forget = forget
        self._clip = clip
        self._products = [[0.0] * features for _ in range(features)]
        self._targets = [0.0] * features
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
            seconds = min(seconds, self._clip * self.seconds(features))
        scaled = [feature / seconds for feature in features]
        for row, left in zip(self._products, scaled, strict=True):
            for i, right in enumerate(scaled):
                row[i] = self._forget * row[i] + left * right
        for i, value in enumerate(scaled):
            self._targets[i] = self._forget * self._targets[i] + value
        self.samples += 1
        self._solve()

    def _solve(self) -> None:
        """Coordinate descent; starts from the last solution, which is close."""
        parts, size = self.parts, range(len(self.parts))
        for _ in range(_SWEEPS):
            moved = 0.0
            for i in size:
                row = self._products[i]
                if row[i] <= 0.0:
                    continue
                others = sum(row[j] * parts[j] for j in size if j != i)
                new = max(0.0, (self._targets[i] - others) / row[i])
                moved = max(moved, abs(new - parts[i]) / (new + parts[i] + 1e-12))
                parts[i] = new
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
        moved; other streams that share the steps."""
        past = self.context - self.new / 2
        return (
            1.0,
            (self.new + self.ahead) / 1e3,
            self.new * past / 1e6,
            self.pulled / 1e3,
            self.streams / 10,
        )


_FEATURES = 5


class Rates:
    """What is known of every engine, by its name."""

    def __init__(self) -> None:
        self._prefill: dict[str, Fit] = {}
        self._handed_over: dict[str, Fit] = {}
        self._append: dict[str, Fit] = {}
        self._local: dict[tuple[str, bool], float] = {}
        self._ahead: Counter[str] = Counter()

    def prefill(self, worker: str, work: Work) -> float | None:
        """Seconds of a prefill leg; None while nothing is known."""
        return _expected(self._prefill.get(worker), work)

    def handed_over(self, worker: str, work: Work) -> float | None:
        """Seconds from a decode leg's start to its first byte, after prefill."""
        return _expected(self._handed_over.get(worker), work)

    def append(self, worker: str, work: Work) -> float | None:
        """Seconds from a decode leg's start to its first byte, without prefill."""
        return _expected(self._append.get(worker), work)

    def recompute(self, tokens: int) -> float | None:
        """Seconds that a prefill engine takes for a prompt, on average over the engines."""
        work = Work(tokens, tokens)
        known = [s for fit in self._prefill.values() if (s := _expected(fit, work)) is not None]
        return sum(known) / len(known) if known else None

    def local_share(self, worker: str, *, same: bool) -> float:
        """Share of a conversation's tokens that a prefill engine finds in its own cache. ``same``: it served
        the last turn."""
        return self._local.get((worker, same), 0.0)

    def ahead(self, worker: str) -> int:
        """Tokens that an engine is computing."""
        return self._ahead[worker]

    @contextmanager
    def computing(self, worker: str, tokens: int) -> Iterator[None]:
        """The time that an engine computes ``tokens`` tokens."""
        self._ahead[worker] += tokens
        try:
            yield
        finally:
            self._ahead[worker] -= tokens
            if self._ahead[worker] <= 0:
                del self._ahead[worker]

    def saw_prefill(self, worker: str, work: Work, seconds: float) -> None:
        """A prefill leg took ``seconds``."""
        self._prefill.setdefault(worker, Fit(_FEATURES)).observe(work.features, seconds)

    def saw_handed_over(self, worker: str, work: Work, seconds: float) -> None:
        """A decode leg's first byte came after ``seconds``."""
        self._handed_over.setdefault(worker, Fit(_FEATURES)).observe(work.features, seconds)

    def saw_append(self, worker: str, work: Work, seconds: float) -> None:
        """The first byte of a decode leg without prefill came after ``seconds``."""
        self._append.setdefault(worker, Fit(_FEATURES)).observe(work.features, seconds)

    def saw_local(self, worker: str, share: float, *, same: bool) -> None:
        """A prefill engine had this share of a conversation's tokens."""
        before = self._local.get((worker, same))
        self._local[worker, same] = share if before is None else before + 0.2 * (share - before)

    def forget(self, worker: str) -> None:
        """The engine has a new life, or is gone."""
        for fits in (self._prefill, self._handed_over, self._append):
            fits.pop(worker, None)
        for same in (True, False):
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


def _expected(fit: Fit | None, work: Work) -> float | None:
    return fit.seconds(work.features) if fit is not None and fit.known else None
