"""The criteria, on made-up figures: each can hold, fail, and be open."""

from __future__ import annotations

import dataclasses

import pytest

from antiphon_server.bench.overhead.contenders import COLD, FIRST, PEER, SHORT, Kind
from antiphon_server.bench.overhead.criteria import Verdict, holds, verdicts
from antiphon_server.bench.overhead.crowds import CrowdRow
from antiphon_server.bench.overhead.record import Cell, Row

LEGS_MS = 0.2


def row(contender: str, added_ms: float, size: int, *, stream: bool = False, connections: int = 1) -> Row:
    return Row(
        contender=contender,
        kind=Kind.PEER if contender == PEER else Kind.OURS,
        cell=Cell(size, stream, connections),
        count=100,
        median=(added_ms + LEGS_MS) / 1000,
        p99=1.0,
        added=added_ms / 1000,
        added_p99=0.0,
        rate=1.0,
        cpu=0.0,
        per_core=None,
        engines_cpu=0.0,
        client_cpu=0.0,
        paths={},
    )


def pair(size: int, ours_ms: float, peer_ms: float, *, stream: bool = False) -> list[Row]:
    return [row(SHORT.name, ours_ms, size, stream=stream), row(PEER, peer_ms, size, stream=stream)]


GOOD = [*pair(480_000, 2.0, 4.0), *pair(2_000, 0.7, 0.4)]
CROWD = CrowdRow(
    contender=FIRST.name,
    kind=Kind.OURS,
    streams=1000,
    chunks=122_000,
    lost=0,
    disordered=0,
    gap=0.05,
    gap_p99=0.07,
    added_gap_p99=0.0199,
    delay=0.0,
    delay_p99=0.0,
    added_delay_p99=0.0,
    rate=20_000.0,
    cores=0.9,
    engines_cores=0.2,
    client_cores=0.2,
    late=0.0,
)


def passed(rows: list[Row], crowd: CrowdRow | None = CROWD) -> list[bool | None]:
    return [verdict.passed for verdict in verdicts(rows, [crowd] if crowd is not None else [])]


def test_figures_at_the_limits_hold() -> None:
    assert passed(GOOD) == [True, True, True, True]
    assert holds(verdicts(GOOD, [CROWD]))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([*pair(480_000, 2.01, 4.0), *pair(2_000, 0.7, 0.4)], [False, True]),
        ([*pair(480_000, 2.0, 4.0), *pair(2_000, 0.71, 0.4)], [True, False]),
        # Nothing added is no measurement.
        ([*pair(480_000, -0.1, 4.0), *pair(2_000, 0.7, 0.4)], [False, True]),
        # One manner of two is enough to fail.
        ([*GOOD, *pair(480_000, 3.0, 4.0, stream=True)], [False, True]),
        ([*GOOD, *pair(2_000, 0.8, 0.4, stream=True)], [True, False]),
    ],
)
def test_a_body_that_is_too_slow_fails(rows: list[Row], expected: list[bool]) -> None:
    assert passed(rows)[:2] == expected
    assert not holds(verdicts(rows, [CROWD]))


def test_latency_and_what_is_added_are_told_of_both_and_of_the_router_as_it_ships() -> None:
    shipped = row(COLD.name, 3.0, 480_000)
    assert verdicts([*GOOD, shipped], [])[0].text == (
        "whole 2.20 ms, of which added 2.00 against 4.20 ms, of which added 4.00: 0.52 times the latency, "
        "0.50 times what is added (with token ids 3.20 ms, of which added 3.00)"
    )


def test_what_waits_in_a_queue_is_not_judged() -> None:
    crowded = [row(SHORT.name, 900.0, 480_000, connections=16), row(PEER, 1.0, 480_000, connections=16)]
    assert passed([*GOOD, *crowded])[:2] == [True, True]


@pytest.mark.parametrize(
    ("crowd", "expected"),
    [
        (dataclasses.replace(CROWD, added_gap_p99=0.02), [False, True]),
        (dataclasses.replace(CROWD, lost=1), [True, False]),
        (dataclasses.replace(CROWD, disordered=1), [True, False]),
    ],
)
def test_a_crowd_that_suffers_fails(crowd: CrowdRow, expected: list[bool]) -> None:
    assert passed(GOOD, crowd)[2:] == expected


def test_what_was_not_measured_is_open_and_does_not_hold() -> None:
    assert passed([row(SHORT.name, 1.0, 480_000)], None) == [None] * 4
    assert passed(GOOD, dataclasses.replace(CROWD, streams=250))[2:] == [None, None]
    assert not holds([Verdict("one", True, ""), Verdict("other", None, "")])
    assert holds([Verdict("one", True, "")])
