"""The decision of a turn, pure: go straight to decode (append), pull what decode holds (reuse), or compute
all (cold)."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_server.protocol import Match
from antiphon_server.router.plan.reasons import Path, Reason
from antiphon_server.router.plan.trials import Trial
from antiphon_server.router.store.frontier import Frontier


@dataclass(frozen=True, slots=True)
class EngineState:
    """What is known of an engine when a turn is planned. ``stock``: it has no plug-in of ours. ``caches``: it
    finds the KV of a prompt's beginning by itself."""

    healthy: bool
    epoch: str | None
    stock: bool
    reuse: bool
    caches: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected TTFT of each path in seconds; None while nothing is measured.

    ``known``: the request extends the last turn's, so what is new can be estimated. ``burden``: seconds that
    an append takes from decode's other streams; ``room``: that leaves them within their limit.
    """

    cold: float | None = None
    reuse: float | None = None
    append: float | None = None
    known: bool = False
    burden: float | None = None
    room: bool = True

    def trial(self, paths: frozenset[Path]) -> Trial | None:
        """An append against the fastest other one of ``paths``; None if one of the two is not known."""
        others = [
            seconds
            for path, seconds in ((Path.REUSE, self.reuse), (Path.COLD, self.cold))
            if path in paths and seconds is not None
        ]
        return Trial(self.append, min(others)) if self.append is not None and others else None


UNMEASURED = Expected()


@dataclass(frozen=True, slots=True)
class Plan:
    """``declined``: why the turn does not go straight to decode, where it could have been thought of."""

    path: Path
    reason: Reason
    declined: Reason | None = None


ALL_PATHS = frozenset(Path)


def plan(
    frontier: Frontier | None,
    *,
    absent: Reason,
    holder: EngineState | None,
    prefill: EngineState | None,
    decode: EngineState,
    stays: bool,
    now: float,
    margin: float,
    expected: Expected | None = None,
    paths: frozenset[Path] = ALL_PATHS,
    tries: bool = False,
    parted: bool = False,
) -> Plan:
    """Choose the path of a turn that has a conversation.

    ``absent``: why there is no frontier, used when there is none. ``holder``: the decode engine that holds
    it, None if it is no longer configured. ``prefill``, ``decode``: the engines that are to serve the turn;
    ``prefill`` is None when none is up. ``stays``: ``decode`` is the holder. ``margin``: seconds of lease
    that must be left. ``paths``: those that may be chosen; where none of them can be taken it is cold.
    ``tries``: append if only its expected time speaks against it. ``parted``: ``prefill`` cannot read what
    the holder has, or not now.
    """
    if decode.stock or (prefill is not None and prefill.stock):
        return Plan(Path.COLD, Reason.STOCK)
    if not decode.reuse or not (prefill is None or prefill.reuse):
        return Plan(Path.COLD, Reason.UNSUPPORTED)
    if frontier is None:
        return Plan(Path.COLD, absent)
    if holder is None or not holder.healthy:
        return Plan(Path.COLD, Reason.UNHEALTHY)
    if holder.epoch != frontier.epoch:
        return Plan(Path.COLD, Reason.RESTARTED)
    if frontier.deadline - margin <= now:
        return Plan(Path.COLD, Reason.EXPIRED)
    if prefill is None:
        appends = stays and holder.caches
        return Plan(Path.APPEND if appends else Path.COLD, Reason.UNHEALTHY)
    if parted:
        return Plan(Path.COLD, Reason.PARTED)
    expected = expected or UNMEASURED
    declined = _declined(expected, caches=stays and holder.caches, stays=stays, paths=paths)
    if declined is None:
        return Plan(Path.APPEND, Reason.SHORT)
    if declined is Reason.LONG and tries:
        return Plan(Path.APPEND, Reason.TRIAL)
    if Path.REUSE not in paths:
        return Plan(Path.COLD, declined if Path.APPEND in paths else Reason.OFF, declined)
    if Path.COLD in paths and _above(expected.reuse, expected.cold):
        return Plan(Path.COLD, Reason.SLOWER, declined)
    return Plan(Path.REUSE, Reason.PLANNED, declined)


def _declined(expected: Expected, *, caches: bool, stays: bool, paths: frozenset[Path]) -> Reason | None:
    """Why not append; None: append."""
    if Path.APPEND not in paths:
        return Reason.OFF
    if not stays:
        return Reason.ELSEWHERE
    if not caches:
        return Reason.UNSUPPORTED
    if not expected.known:
        return Reason.REWRITTEN
    if not expected.room:
        return Reason.CROWDED
    if len(paths) == 1:
        return None
    trial = expected.trial(paths)
    if trial is None:
        return Reason.UNMEASURED
    return Reason.LONG if trial.append > trial.other else None


def _above(seconds: float | None, other: float | None) -> bool:
    return seconds is not None and other is not None and seconds > other


_OUTCOMES = {
    Match.NONE: Plan(Path.COLD, Reason.FAILED),
    Match.FULL: Plan(Path.REUSE, Reason.FULL),
    Match.CUT: Plan(Path.REUSE, Reason.CUT),
    Match.LOCAL: Plan(Path.REUSE, Reason.LOCAL),
    Match.MISMATCH: Plan(Path.COLD, Reason.MISMATCH),
    Match.THRESHOLD: Plan(Path.COLD, Reason.THRESHOLD),
    Match.UNSEALED: Plan(Path.COLD, Reason.UNSEALED),
    Match.FOREIGN: Plan(Path.COLD, Reason.FOREIGN),
    Match.FAILED: Plan(Path.COLD, Reason.FAILED),
    Match.UNSUPPORTED: Plan(Path.COLD, Reason.UNSUPPORTED),
}


def outcome(planned: Plan, match: Match) -> Plan:
    """What became of the plan once prefill has said what it did with the handle."""
    return _OUTCOMES[match] if planned.path is Path.REUSE else planned
