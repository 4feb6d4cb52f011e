"""Question 4: TTFT, at p95 and p99 as well, expected and as logged. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.advise.outlook import Outlook
from antiphon_server.advise.turn import Turn
from antiphon_server.quantiles import Spread, spread


@dataclass(frozen=True, slots=True)
class Latency:
    """One state of prefill's cache. ``off``, ``on``: TTFT of all turns, first ones too. ``paths``: share of
    turns on each. ``work``: of a prefill engine's time, what is left with reuse. ``slower``: share of turns
    that come more than 5 % later. ``stall``: seconds of a decode engine's time that appends take, a turn."""

    off: Spread
    on: Spread
    paths: tuple[tuple[str, float], ...]
    work: float
    work_off: float
    work_on: float
    slower: float
    stall: float

    @property
    def gain(self) -> float:
        """Of the mean TTFT, what is saved."""
        return 1 - self.on.mean / self.off.mean if self.off.mean else 0.0

    @property
    def saved(self) -> float:
        """Seconds a turn, mean."""
        return self.off.mean - self.on.mean


def latency(outlooks: Sequence[Outlook]) -> Latency | None:
    """None without turns."""
    off, on = spread([o.off for o in outlooks]), spread([o.on for o in outlooks])
    if off is None or on is None:
        return None
    paths = Counter(o.path.value for o in outlooks)
    work_off = sum(o.work_off for o in outlooks) / len(outlooks)
    work_on = sum(o.work_on for o in outlooks) / len(outlooks)
    return Latency(
        off,
        on,
        tuple((path, count / len(outlooks)) for path, count in sorted(paths.items())),
        work=work_on / work_off if work_off else 1.0,
        work_off=work_off,
        work_on=work_on,
        slower=sum(o.on > 1.05 * o.off for o in outlooks) / len(outlooks),
        stall=sum(o.burden for o in outlooks) / len(outlooks),
    )


@dataclass(frozen=True, slots=True)
class Logged:
    """TTFT as the log has it. ``path``: the router's word, "" where there is none."""

    path: str
    ttft: Spread


def logged(turns: Sequence[Turn]) -> tuple[Logged, ...]:
    """By path; nothing where the log has no TTFT."""
    by: dict[str, list[float]] = {}
    for turn in turns:
        if turn.ttft is not None:
            by.setdefault(turn.path or "", []).append(turn.ttft)
    return tuple(Logged(path, found) for path, values in sorted(by.items()) if (found := spread(values)))


def cached_share(turns: Sequence[Turn]) -> float | None:
    """Of the tokens that prefill's own cache could have had, those it had, where the log says; turns that
    pulled or appended say nothing of it."""
    had = could = 0
    for turn in turns:
        if turn.index and turn.cached is not None and turn.path in (None, "cold"):
            had, could = had + min(turn.cached, turn.local), could + turn.local
    return had / could if could else None
