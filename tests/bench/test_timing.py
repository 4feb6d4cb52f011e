from __future__ import annotations

import pytest

from antiphon_server.bench.timing import Answer, Outcome, outcome_of

SAID = Answer(ids=(1, 2, 3), text="abc", logprobs=(-0.1, -0.2, -0.3))


def test_outcome_is_read_from_the_routers_header() -> None:
    assert outcome_of("path=reuse; matched=1024; reason=full") == Outcome("reuse", 1024, "full")


@pytest.mark.parametrize("header", [None, "", "nonsense", "path"])
def test_server_that_says_nothing_has_an_unknown_outcome(header: str | None) -> None:
    assert outcome_of(header) == Outcome("unknown", 0, "unknown")


def test_matched_that_is_no_number_counts_nothing() -> None:
    assert outcome_of("path=reuse; matched=many; reason=full").matched == 0


def test_answer_equals_itself_whatever_its_log_probabilities() -> None:
    assert SAID.equals(Answer(ids=(1, 2, 3), text="abc", logprobs=(-9.0,)))


@pytest.mark.parametrize(
    "other",
    [
        Answer(ids=(1, 2, 4), text="abc"),
        Answer(ids=(1, 2), text="abc"),
        Answer(ids=(1, 2, 3), text="abd"),
        Answer(ids=(1, 2, 3), text="abc", tool="f"),
        Answer(ids=(1, 2, 3), text="abc", arguments="{}"),
    ],
)
def test_any_difference_makes_answers_unequal(other: Answer) -> None:
    assert not SAID.equals(other)


def test_drift_is_the_largest_difference_of_log_probabilities() -> None:
    assert SAID.drift(Answer((), "", logprobs=(-0.1, -0.7, -0.3))) == pytest.approx(0.5)
    assert SAID.drift(Answer((), "")) == 0.0
