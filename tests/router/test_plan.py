"""The decision of a turn."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.protocol import Match
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.plan.plan import ALL_PATHS, EngineState, Expected, Plan, outcome, plan
from antiphon_server.router.plan.reasons import Path, Reason
from antiphon_server.router.store.frontier import Frontier

FRONTIER = Frontier(
    Key("", "m", "", "c"), b"{}", "lease", "http://d", "epoch", 100, deadline=160.0, idle_since=100.0
)
UP = EngineState(healthy=True, epoch="epoch", stock=False, reuse=True, caches=True)
STOCK = EngineState(healthy=True, epoch=None, stock=True, reuse=False)
UNABLE = dataclasses.replace(UP, reuse=False)


def decide(
    frontier: Frontier | None = FRONTIER,
    holder: EngineState | None = UP,
    prefill: EngineState | None = UP,
    decode: EngineState = UP,
    now: float = 120.0,
    stays: bool = True,
    expected: Expected | None = None,
    paths: frozenset[Path] = ALL_PATHS,
    tries: bool = False,
    parted: bool = False,
) -> Plan:
    return plan(
        frontier,
        absent=Reason.FIRST,
        holder=holder,
        prefill=prefill,
        decode=decode,
        stays=stays,
        now=now,
        margin=8.0,
        expected=expected,
        paths=paths,
        tries=tries,
        parted=parted,
    )


def test_held_kv_is_reused() -> None:
    assert decide().path is Path.REUSE


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (decide(frontier=None), Reason.FIRST),
        (decide(prefill=STOCK), Reason.STOCK),
        (decide(stays=False, parted=True), Reason.PARTED),
        (decide(holder=None, stays=False, parted=True), Reason.UNHEALTHY),
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


FAST_APPEND = Expected(cold=3.0, reuse=1.0, append=0.5, known=True)


def test_fastest_path_is_taken() -> None:
    assert decide(expected=FAST_APPEND) == Plan(Path.APPEND, Reason.SHORT)
    slow = dataclasses.replace(FAST_APPEND, append=1.5)
    assert decide(expected=slow) == Plan(Path.REUSE, Reason.PLANNED, Reason.LONG)


def test_slower_append_is_tried_where_nothing_else_speaks_against_it() -> None:
    slow = dataclasses.replace(FAST_APPEND, append=1.5)
    assert decide(expected=slow, tries=True) == Plan(Path.APPEND, Reason.TRIAL)
    assert decide(expected=FAST_APPEND, tries=True).reason is Reason.SHORT
    for change in ({"room": False}, {"known": False}):
        assert decide(expected=dataclasses.replace(slow, **change), tries=True).path is Path.REUSE
    assert decide(expected=slow, tries=True, stays=False).path is Path.REUSE
    assert decide(expected=slow, tries=True, paths=frozenset({Path.COLD, Path.REUSE})).path is Path.REUSE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"stays": False}, Reason.ELSEWHERE),
        ({"holder": dataclasses.replace(UP, caches=False)}, Reason.UNSUPPORTED),
        ({"expected": dataclasses.replace(FAST_APPEND, known=False)}, Reason.REWRITTEN),
        ({"expected": dataclasses.replace(FAST_APPEND, room=False)}, Reason.CROWDED),
        ({"expected": dataclasses.replace(FAST_APPEND, append=None)}, Reason.UNMEASURED),
        ({"expected": None}, Reason.REWRITTEN),
        ({"paths": frozenset({Path.COLD, Path.REUSE})}, Reason.OFF),
    ],
)
def test_declined_append_has_a_reason(change: dict[str, Any], reason: Reason) -> None:
    decision = decide(**{"expected": FAST_APPEND, **change})
    assert (decision.path, decision.declined) == (Path.REUSE, reason)


def test_without_prefill_decode_goes_on_from_what_it_holds() -> None:
    assert decide(prefill=None) == Plan(Path.APPEND, Reason.UNHEALTHY)
    assert decide(prefill=None, stays=False) == Plan(Path.COLD, Reason.UNHEALTHY)


def test_paths_restrict_the_choice() -> None:
    slow = Expected(cold=1.0, reuse=2.0, append=3.0, known=True)
    assert decide(expected=slow).reason is Reason.SLOWER
    assert decide(expected=slow, paths=frozenset({Path.REUSE})).path is Path.REUSE
    assert decide(expected=slow, paths=frozenset({Path.APPEND})).path is Path.APPEND
    assert decide(expected=FAST_APPEND, paths=frozenset({Path.COLD})) == Plan(
        Path.COLD, Reason.OFF, Reason.OFF
    )
    rewritten = dataclasses.replace(FAST_APPEND, known=False)
    assert decide(expected=rewritten, paths=frozenset({Path.APPEND})).reason is Reason.REWRITTEN


seconds = st.none() | st.floats(0.001, 1000.0)


@given(
    expected=st.builds(
        Expected, cold=seconds, reuse=seconds, append=seconds, known=st.booleans(), room=st.booleans()
    ),
    stays=st.booleans(),
    paths=st.sets(st.sampled_from(Path), min_size=1).map(frozenset),
)
def test_no_path_is_expected_to_be_slower_than_cold(
    expected: Expected, stays: bool, paths: frozenset[Path]
) -> None:
    decision = decide(expected=expected, stays=stays, paths=paths | {Path.COLD})
    chosen = getattr(expected, decision.path.value)
    if expected.cold is not None and chosen is not None:
        assert chosen <= expected.cold
    assert decision.path in paths | {Path.COLD}
    if decision.path is Path.APPEND:
        assert expected.known
        assert expected.room


@pytest.mark.parametrize("match", list(Match))
def test_outcome_is_prefills_word(match: Match) -> None:
    planned = Plan(Path.REUSE, Reason.PLANNED)
    told = outcome(planned, match)
    assert told.reason is not Reason.PLANNED
    assert (told.path is Path.REUSE) == (match in {Match.FULL, Match.CUT, Match.LOCAL})
    cold = Plan(Path.COLD, Reason.BUSY)
    assert outcome(cold, match) == cold
