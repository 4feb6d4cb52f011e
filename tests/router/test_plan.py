"""The decision of a turn."""

from __future__ import annotations

import dataclasses

import pytest

from antiphon_server.protocol import Match
from antiphon_server.router.frontier import Frontier
from antiphon_server.router.identity import Key
from antiphon_server.router.plan import EngineState, Path, Plan, Reason, outcome, plan

FRONTIER = Frontier(
    Key("", "m", "", "c"), b"{}", "lease", "http://d", "epoch", 100, deadline=160.0, idle_since=100.0
)
UP = EngineState(healthy=True, epoch="epoch", stock=False, reuse=True)
STOCK = EngineState(healthy=True, epoch=None, stock=True, reuse=False)
UNABLE = dataclasses.replace(UP, reuse=False)


def decide(
    frontier: Frontier | None = FRONTIER,
    holder: EngineState | None = UP,
    prefill: EngineState = UP,
    decode: EngineState = UP,
    now: float = 120.0,
) -> Plan:
    return plan(
        frontier, absent=Reason.FIRST, holder=holder, prefill=prefill, decode=decode, now=now, margin=8.0
    )


def test_held_kv_is_reused() -> None:
    assert decide().path is Path.REUSE


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (decide(frontier=None), Reason.FIRST),
        (decide(prefill=STOCK), Reason.STOCK),
        (decide(decode=STOCK), Reason.STOCK),
        (decide(prefill=UNABLE), Reason.UNSUPPORTED),
        (decide(decode=UNABLE), Reason.UNSUPPORTED),
        (decide(holder=None), Reason.UNHEALTHY),
        (decide(holder=dataclasses.replace(UP, healthy=False)), Reason.UNHEALTHY),
        (decide(holder=dataclasses.replace(UP, epoch="next")), Reason.RESTARTED),
        (decide(now=152.0), Reason.EXPIRED),
    ],
)
def test_cold_has_a_reason(decision: Plan, reason: Reason) -> None:
    assert decision == Plan(Path.COLD, reason)


def test_lease_is_used_until_the_margin() -> None:
    assert decide(now=151.9).path is Path.REUSE


@pytest.mark.parametrize("match", list(Match))
def test_outcome_is_prefills_word(match: Match) -> None:
    planned = Plan(Path.REUSE, Reason.PLANNED)
    told = outcome(planned, match)
    assert told.reason is not Reason.PLANNED
    assert (told.path is Path.REUSE) == (match in {Match.FULL, Match.CUT, Match.LOCAL})
    cold = Plan(Path.COLD, Reason.BUSY)
    assert outcome(cold, match) == cold
