"""What a demo measured, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.bench.conditions import Conditions
from antiphon_server.bench.timing import Timed

REUSE = "reuse"


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn of one run. ``received``: bytes of KV that prefill pulled from decode for it."""

    timed: Timed
    received: float


@dataclass(frozen=True, slots=True)
class Row:
    """One turn of both runs; what has not happened yet is None. ``shown``: the answer for people."""

    turn: int
    name: str
    without: Measured | None = None
    reusing: Measured | None = None
    shown: str = ""

    @property
    def ratio(self) -> float | None:
        """TTFT without reuse over TTFT with it."""
        if self.without is None or self.reusing is None:
            return None
        return ratio(self.without.timed.ttft, self.reusing.timed.ttft)

    @property
    def same(self) -> bool | None:
        """The same answer to the same prompt."""
        if self.without is None or self.reusing is None:
            return None
        left, right = self.without.timed, self.reusing.timed
        return left.prompt == right.prompt and left.answer.equals(right.answer)

    @property
    def drift(self) -> float:
        """Largest difference of the answers' log-probabilities."""
        if self.without is None or self.reusing is None:
            return 0.0
        return self.without.timed.answer.drift(self.reusing.timed.answer)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``pinned``: finished requests whose KV an engine still keeps after the conversation was closed; None
    where engines do not say."""

    identical: bool
    reused: bool
    pinned: int | None

    @property
    def exit_code(self) -> int:
        """0 only if every answer is the same and something was reused."""
        return 0 if self.identical and self.reused else 1


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that was measured. ``settled``: seconds until nothing was pinned."""

    rows: tuple[Row, ...]
    verdict: Verdict
    settled: float
    conditions: Conditions


def verdict(rows: Sequence[Row], pinned: int | None) -> Verdict:
    """The first turn has nothing to reuse, so only later ones count."""
    later = [row.reusing.timed.outcome for row in rows[1:] if row.reusing is not None]
    return Verdict(
        identical=bool(rows) and all(row.same for row in rows),
        reused=any(outcome.path == REUSE and outcome.matched > 0 for outcome in later),
        pinned=pinned,
    )


def ratio(without: float, reusing: float) -> float | None:
    """How many times faster; None where that means nothing."""
    return without / reusing if reusing > 0 else None


def totals(rows: Sequence[Row], *, first: int = 0) -> tuple[float, float]:
    """Sum of TTFT without and with reuse, over finished turns from index ``first`` on. Seconds."""
    done = [(row.without, row.reusing) for row in rows[first:]]
    return (
        sum(left.timed.ttft for left, right in done if left and right),
        sum(right.timed.ttft for left, right in done if left and right),
    )
