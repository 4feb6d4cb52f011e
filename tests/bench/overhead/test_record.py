"""Figures out of bursts, and bursts that are not what they are taken for."""

from __future__ import annotations

import pytest

from antiphon_server.bench.overhead.contenders import APPEND, BOTH, COLD, DIRECT, REUSE
from antiphon_server.bench.overhead.load import Burst
from antiphon_server.bench.overhead.measure import LegsError, Plan, check
from antiphon_server.bench.overhead.processes import Usage
from antiphon_server.bench.overhead.record import Cell, Sample, rows_of

WHOLE, STREAM = Cell(2_000, False, 1), Cell(2_000, True, 1)


def burst(*latencies: float, path: str = "none", first: float = 0.001) -> Burst:
    return Burst((first,) * len(latencies), latencies, {path: len(latencies)}, 2.0)


def test_latency_is_added_to_directs_and_cpu_is_told_a_request() -> None:
    samples = [
        (DIRECT, Sample(burst(0.1, 0.1, 0.3), 0.0, 0.3, 0.6)),
        (BOTH, Sample(burst(0.2, 0.2, 0.4), 0.0, 0.3, 0.6)),
        (COLD, Sample(burst(0.2, 0.4, path="cold"), 0.5, 1.0, 1.0)),
        (COLD, Sample(burst(0.4, 0.6, path="cold"), 0.5, 1.0, 1.0)),
    ]
    direct, _, ours = rows_of(WHOLE, samples)
    assert (direct.count, direct.median, direct.p99, direct.added) == (3, 0.1, 0.3, 0.0)
    assert direct.per_core is None
    assert (ours.count, ours.median, ours.p99) == (4, 0.4, 0.6)
    assert ours.added == pytest.approx(0.2)
    assert ours.added_p99 == pytest.approx(0.2)
    assert (ours.rate, ours.cpu, ours.per_core) == (1.0, 0.25, 4.0)
    assert (ours.engines_cpu, ours.client_cpu) == (0.5, 0.5)
    assert ours.paths == {"cold": 4}


def test_one_leg_is_compared_with_one_leg() -> None:
    samples = [
        (DIRECT, Sample(burst(0.125), 0.0, 0.0, 0.0)),
        (BOTH, Sample(burst(0.25), 0.0, 0.0, 0.0)),
        (APPEND, Sample(burst(0.5), 0.1, 0.0, 0.0)),
    ]
    assert rows_of(WHOLE, samples)[2].added == 0.375


def test_a_streams_latency_is_to_its_first_byte() -> None:
    samples = [(DIRECT, Sample(burst(0.5, 0.5, first=0.25), 0.0, 0.0, 0.0))]
    assert rows_of(STREAM, samples)[0].median == 0.25
    assert rows_of(WHOLE, samples)[0].median == 0.5


def test_a_burst_that_went_as_it_should_is_counted() -> None:
    check(COLD, burst(0.1, 0.1, path="cold"), (2, 2))
    check(DIRECT, burst(0.1, 0.1), (0, 2))


@pytest.mark.parametrize(
    ("path", "legs", "told"),
    [
        ("cold", (1, 1), "paths were"),
        ("reuse", (2, 1), "made 2 prefill and 1 decode legs, not 1 and 1"),
        ("reuse", (1, 2), "made 1 prefill and 2 decode legs, not 1 and 1"),
    ],
)
def test_another_path_or_other_legs_are_no_measurement(path: str, legs: tuple[int, int], told: str) -> None:
    with pytest.raises(LegsError, match=told):
        check(REUSE, burst(0.1, path=path), legs)


def test_a_plan_has_every_cell_once() -> None:
    cells = list(Plan((2_000, 64_000), (1, 16), 1, 1.0).cells())
    assert len(cells) == len(set(cells)) == 8


def test_what_others_used_is_what_is_left_of_the_machine() -> None:
    since, now = Usage(10.0, 100.0, 50.0), Usage(20.0, 115.0, 57.0)
    assert now.others(since) == pytest.approx(0.8)
    assert Usage(20.0, 105.0, 57.0).others(since) == 0.0
