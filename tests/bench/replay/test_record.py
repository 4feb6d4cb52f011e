from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from antiphon_server.bench.replay.difference import first_difference
from antiphon_server.bench.replay.record import Served, ratio_of, rows_of, total_of
from antiphon_server.bench.replay.run import wanted
from antiphon_server.bench.timing import Answer, Outcome, Timed

SAID = Answer((1, 2, 3), "abc", None, "", (-0.1, -0.2, -0.3), "stop")
TURN = Timed(0.1, 0.2, 10, "prompt", Outcome(), SAID)


def answered(**changes: object) -> Timed:
    return replace(TURN, answer=replace(SAID, **changes))  # type: ignore[arg-type]


def served(turn: int, ttft: float, arm: str = "auto", **more: object) -> Served:
    return replace(Served("c", turn, arm, 0.0, 0.0, ttft, ttft + 1, 100, 10), **more)  # type: ignore[arg-type]


def test_equal_answers_have_no_difference() -> None:
    assert first_difference("c", "off", [TURN, TURN], "on", [TURN, answered(logprobs=())]) == (None, 2)


def test_the_first_token_that_differs_is_told() -> None:
    other = answered(ids=(1, 9, 3), text="axc", logprobs=(-0.1, -0.7, -0.3))
    found, compared = first_difference("c", "off", [TURN, TURN, TURN], "on", [TURN, other, other])
    assert found is not None
    assert (found.turn, found.token, compared) == (2, 1, 2)
    assert (found.one, found.other) == ("bc", "xc")
    assert found.drift == pytest.approx(0.5)
    assert "c, turn 2: off and on differ from token 1" in str(found)


def test_an_answer_that_is_shorter_differs_where_it_ends() -> None:
    found, _ = first_difference("c", "off", [TURN], "on", [answered(ids=(1, 2), text="ab")])
    assert found is not None
    assert found.token == 2


def test_text_is_compared_where_there_are_no_ids() -> None:
    one, other = answered(ids=(), text="same, then this"), answered(ids=(), text="same, then that")
    found, _ = first_difference("c", "off", [one], "on", [other])
    assert found is not None
    assert found.token == len("same, then th")


def test_prompts_of_other_tokens_differ_before_any_answer() -> None:
    found, _ = first_difference("c", "off", [TURN], "on", [replace(TURN, prompt="other")])
    assert found is not None
    assert found.token is None
    assert "in the prompt's tokens" in str(found)


def test_turns_that_one_arm_lacks_are_not_compared() -> None:
    assert first_difference("c", "off", [TURN, TURN], "on", [TURN]) == (None, 1)


def test_turns_are_classed_by_their_place() -> None:
    turns = [served(n, n / 10) for n in range(1, 11)]
    waits = {("auto", "1"): array("d", [9.0]), ("auto", "2-5"): array("d", [0.4, 0.1, 0.2, 0.3])}
    rows = {row.kind: row for row in rows_of(["auto"], turns, waits)}
    assert {kind: row.turns for kind, row in rows.items()} == {"1": 1, "2-5": 4, "6+": 5, "2+": 9}
    assert rows["2-5"].ttft == pytest.approx(0.35)
    assert (rows["6+"].p95, rows["6+"].mean) == pytest.approx((1.0, 0.8))
    assert (rows["2-5"].wait, rows["2-5"].wait_p99) == (0.25, 0.4)
    assert (rows["2+"].wait_p99, rows["6+"].wait) == (0.4, 0.0)


def test_failed_turns_count_as_errors_and_in_no_figure() -> None:
    turns = [served(1, 1.0), served(2, 0.0, error="gone")]
    assert [row.kind for row in rows_of(["auto"], turns, {})] == ["1"]
    total = total_of("auto", turns, planned=5, seconds=2.0)
    assert (total.turns, total.errors, total.left_out, total.turns_per_second) == (1, 1, 3, 0.5)


def test_reuse_is_told_by_turns_and_by_tokens() -> None:
    turns = [
        served(2, 1.0, path="append", reason="short", matched=90, held=90),
        served(3, 1.0, path="reuse", reason="full", matched=60, held=90),
        served(4, 1.0, path="cold", reason="slower", matched=30),
        served(5, 1.0, path="cold", reason="first"),
    ]
    (row, _) = rows_of(["auto"], turns, {})
    assert (row.reused, row.cached) == pytest.approx((0.5, 180 / 400))
    total = total_of("auto", turns, planned=4, seconds=1.0)
    assert (total.matched, total.held) == (150, 180)
    assert total.outcomes == dict.fromkeys(
        ("append (short)", "reuse (full)", "cold (slower)", "cold (first)"), 1
    )


def test_a_server_that_names_no_path_reuses_what_it_has_cached() -> None:
    (row, _) = rows_of(["server"], [served(2, 1.0, "server", matched=50), served(3, 1.0, "server")], {})
    assert (row.reused, row.cached) == (0.5, 0.25)


def test_ratios_are_of_the_same_turns_but_first_ones() -> None:
    slow = [served(1, 99.0, "reuse"), *(served(n, n / 1.0, "reuse") for n in range(2, 7))]
    fast = [served(1, 1.0), *(served(n, n / 2.0) for n in range(2, 6)), served(6, 0.0, error="gone")]
    ratio = ratio_of("reuse", "auto", [*slow, *fast], 2.5)
    assert ratio is not None
    assert (ratio.medians, ratio.paired, ratio.enough) == (2.0, 2.0, False)
    assert ratio_of("reuse", "auto", slow) is None


def test_wanted_ratios_are_read() -> None:
    assert wanted(["reuse/auto=1.3"]) == (("reuse", "auto", 1.3),)


@pytest.mark.parametrize(
    "text", ["auto", "reuse/auto", "reuse/auto=", "/auto=1", "reuse/auto=-1", "a/b=fast"]
)
def test_wanted_ratios_of_another_form_are_a_fault(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it like reuse/auto=1\.3"):
        wanted([text])
