from __future__ import annotations

import dataclasses

import pytest

from antiphon_server.bench.conditions import Conditions
from antiphon_server.bench.timing import Answer, Outcome, Timed
from antiphon_server.demo.record import Measured, Record, Row, totals, verdict
from antiphon_server.demo.table import cells, summary

CONDITIONS = Conditions("2026-11-29", "a CPU", 2, 0.1, "tiny", "float32", 32, "0.32", "1.5", "1 + 1", "off")
ANSWER = Answer((1, 2), "ab", logprobs=(-0.5, -0.25))


def measured(ttft: float, *, matched: int = 0, answer: Answer = ANSWER, prompt: str = "same") -> Measured:
    outcome = Outcome("reuse", matched, "full") if matched else Outcome("cold", 0, "first")
    return Measured(Timed(ttft, ttft + 1, 800, prompt, outcome, answer), 1.5e6 if matched else 0.0)


def rows(*, second: Measured | None = None) -> tuple[Row, ...]:
    return (
        Row(1, "error_rate", measured(4.0), measured(4.2)),
        Row(2, "report", measured(8.0), second or measured(2.0, matched=640)),
    )


def record(*, second: Measured | None = None, pinned: int | None = 0) -> Record:
    done = rows(second=second)
    return Record(done, verdict(done, pinned), 0.1, CONDITIONS)


def test_equal_answers_and_reuse_are_success() -> None:
    assert record().verdict.exit_code == 0


@pytest.mark.parametrize(
    "second",
    [
        measured(2.0, matched=640, answer=Answer((1, 3), "ac")),
        measured(2.0, matched=640, answer=Answer((1, 2), "ab", tool="f")),
        measured(2.0, matched=640, prompt="another"),
        measured(2.0),
    ],
    ids=["another token", "another call", "another prompt", "nothing reused"],
)
def test_anything_less_is_failure(second: Measured) -> None:
    assert record(second=second).verdict.exit_code == 1


def test_demo_that_did_not_finish_is_failure() -> None:
    unfinished = (*rows(), Row(3, "report", measured(1.0)))
    assert verdict(unfinished, 0).exit_code == 1
    assert verdict((), 0).exit_code == 1


def test_reuse_in_the_first_turn_alone_does_not_count() -> None:
    first = Row(1, "error_rate", measured(4.0), measured(1.0, matched=640))
    assert not verdict((first, Row(2, "report", measured(4.0), measured(4.0))), 0).reused


def test_row_fills_as_the_runs_go_on() -> None:
    assert cells(Row(1, "report")) == ("1", "report", "", "", "", "", "", "", "")
    assert cells(Row(1, "report", measured(4.0)))[5:] == ("4.00 s", "", "", "")
    assert cells(rows()[1]) == (
        *("2", "report", "800", "640", "reuse (full)", "8.00 s", "2.00 s", "4.0x", "1.5 MB"),
    )


def test_totals_leave_out_what_only_one_run_has() -> None:
    assert totals((*rows(), Row(3, "report", measured(9.0)))) == pytest.approx((12.0, 6.2))
    assert totals(rows(), first=1) == (8.0, 2.0)


def test_summary_says_what_counts() -> None:
    said = "\n".join(summary(record()))
    assert "8.0 s without reuse, 2.0 s with it, 4.0x" in said
    assert "answers identical: yes" in said
    assert "pinned on the engines after close: 0" in said


def test_summary_names_the_turn_that_differs() -> None:
    said = "\n".join(summary(record(second=measured(2.0, matched=640, answer=Answer((1, 3), "ac")))))
    assert "answers identical: NO" in said
    assert "turn 2 differs: 'ab' without reuse, 'ac' with" in said


def test_summary_says_why_nothing_was_reused() -> None:
    assert "nothing was reused: first" in "\n".join(summary(record(second=measured(2.0))))


def test_drift_is_over_both_runs() -> None:
    second = measured(2.0, matched=640, answer=dataclasses.replace(ANSWER, logprobs=(-0.5, -0.26)))
    assert rows(second=second)[1].drift == pytest.approx(0.01)
