from __future__ import annotations

import dataclasses

import pytest

from antiphon_server.bench.conditions import Conditions
from antiphon_server.bench.counters import Counters
from antiphon_server.bench.sweep.record import Cache, Sample, Sweep, exit_code, rows_of
from antiphon_server.bench.sweep.table import cells, summary
from antiphon_server.bench.timing import Answer, Outcome, Timed

CONDITIONS = Conditions("2026-11-29", "a CPU", 2, 0.1, "tiny", "float32", 32, "0.32", "1.5", "1 + 1", "empty")
ANSWER = Answer((1, 2), "ab")
REUSED = Outcome("reuse", 640, "full")
COLD = Outcome("cold", 0, "anonymous")


def sample(
    ttft: float, *, reuse: bool, cache: Cache = Cache.EMPTY, target: int = 1000, answer: Answer = ANSWER
) -> Sample:
    timed = Timed(ttft, ttft + 1, target, "prompt", REUSED if reuse else COLD, answer)
    return Sample(target, cache, reuse, timed, Counters(received=2e6, receiving=0.02, busy=ttft), Counters())


def sweep(*samples: Sample) -> Sweep:
    return Sweep(rows_of(samples), 300, 200, 3, samples, CONDITIONS)


def test_median_of_the_repeats_counts() -> None:
    cold = [sample(ttft, reuse=False) for ttft in (9.0, 4.0, 5.0)]
    reuse = [sample(ttft, reuse=True) for ttft in (1.0, 30.0, 2.0)]
    (row,) = sweep(*cold, *reuse).rows
    assert (row.cold.ttft, row.reuse.ttft, row.ratio) == (5.0, 2.0, 2.5)


def test_cells_show_the_split() -> None:
    (row,) = sweep(sample(4.0, reuse=False), sample(1.0, reuse=True)).rows
    assert cells(row) == (
        *("1000", "4.00 s", "1.00 s", "4.00", "0", "0", "4.00 s", "1.00 s", "2.0 MB", "20 ms", "identical"),
    )


def test_answers_of_both_cache_states_are_compared_with_each_other() -> None:
    warm = sample(1.0, reuse=False, cache=Cache.WARM, answer=Answer((1, 3), "ac"))
    both = sweep(
        sample(4.0, reuse=False),
        sample(1.0, reuse=True),
        warm,
        dataclasses.replace(warm, reuse=True),
    )
    assert not both.identical


def test_other_prompt_is_not_the_same_answer() -> None:
    reuse = sample(1.0, reuse=True)
    other = dataclasses.replace(reuse, timed=dataclasses.replace(reuse.timed, prompt="another"))
    assert not sweep(sample(4.0, reuse=False), other).identical


def test_gain_is_told_for_the_longest_prompt_with_an_empty_cache() -> None:
    measured = sweep(
        sample(4.0, reuse=False),
        sample(2.0, reuse=True),
        sample(9.0, reuse=False, target=6000),
        sample(1.0, reuse=True, target=6000),
        sample(9.0, reuse=False, target=8000, cache=Cache.WARM),
        sample(8.0, reuse=True, target=8000, cache=Cache.WARM),
    )
    assert list(summary(measured, None))[-1] == "cold / reuse at 6000 tokens: 9.00"


@pytest.mark.parametrize(("least", "code"), [(None, 0), (3.3, 0), (4.1, 1)])
def test_gain_below_what_was_asked_for_fails(least: float | None, code: int) -> None:
    measured = sweep(sample(4.0, reuse=False), sample(1.0, reuse=True))
    assert exit_code(measured, least) == code


def test_differing_answer_fails_however_large_the_gain() -> None:
    measured = sweep(sample(9.0, reuse=False), sample(1.0, reuse=True, answer=Answer((1, 3), "ac")))
    assert exit_code(measured, 3.3) == 1
    assert "answers differ between cold and reuse" in "\n".join(summary(measured, 3.3))


def test_bench_that_reused_nothing_fails() -> None:
    reuse = sample(1.0, reuse=True)
    cold = dataclasses.replace(reuse, timed=dataclasses.replace(reuse.timed, outcome=COLD))
    assert exit_code(sweep(sample(4.0, reuse=False), cold), None) == 1


def test_bench_without_a_figure_fails() -> None:
    assert exit_code(sweep(), None) == 1
