from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon._collapse import DIFFERS, JUDGED, LEAST_LOST, MAY_DIFFER, collapse
from antiphon._outcome import Outcome, outcome_of
from antiphon_server.router.plan.reasons import Reason

LAST = Outcome("reuse", "full", 1500, 1800, 1600)
CUT = Outcome("reuse", "cut", 500, 2400, 2000)


@pytest.mark.parametrize("reason", sorted(JUDGED))
def test_much_less_matched_than_held_is_a_collapse(reason: str) -> None:
    found = collapse(replace(CUT, reason=reason), LAST)
    assert found is not None
    assert (found.matched, found.reusable) == (500, 2000)
    assert found.certain is (reason in DIFFERS)


@pytest.mark.parametrize("reason", [*sorted(set(Reason) - JUDGED), None, "new-word"])
def test_what_is_not_the_clients_doing_is_no_collapse(reason: str | None) -> None:
    assert collapse(replace(CUT, reason=reason), LAST) is None


def test_every_judged_reason_is_one_of_the_routers() -> None:
    assert set(Reason) >= JUDGED
    assert not DIFFERS & MAY_DIFFER


@pytest.mark.parametrize(("held", "lost"), [(1000, LEAST_LOST), (10_000, 1000)])
def test_last_blocks_and_a_small_share_may_be_lost(held: int, lost: int) -> None:
    now = Outcome("reuse", "cut", held - lost, held + 100, held)
    assert collapse(now, LAST) is None or held < 1800
    last = replace(LAST, prompt=held - 200)
    assert collapse(now, last) is None
    assert collapse(replace(now, matched=held - lost - 1), last) is not None


def test_no_more_can_be_reused_than_the_prompt_has() -> None:
    again = Outcome(
        "reuse", "cut", 1792, prompt=1800, held=2600
    )  # the same prompt again, after a long answer
    assert collapse(again, LAST) is None
    shortened = Outcome("reuse", "cut", 32, prompt=900, held=2600)
    found = collapse(shortened, LAST)
    assert found is not None
    assert found.reusable == 900


def test_without_held_it_is_the_last_prompt_and_its_answer() -> None:
    now = replace(CUT, held=None, matched=1700)
    assert collapse(now, LAST) is None
    found = collapse(now, LAST, answer=400)
    assert found is not None
    assert found.reusable == 2200
    assert collapse(now, replace(LAST, prompt=None), answer=400) is None


def test_kv_of_another_turn_than_the_last_is_not_judged() -> None:
    assert collapse(replace(CUT, held=1799), LAST) is None
    assert collapse(replace(CUT, held=1800), LAST) is not None


def test_what_is_not_told_is_not_judged() -> None:
    assert collapse(replace(CUT, matched=None), LAST) is None
    silent = Outcome("append", "short", 0, None, 2000)
    assert collapse(silent, LAST) is None
    assert collapse(replace(silent, prompt=2400), LAST) is not None
    found = collapse(replace(CUT, prompt=None), LAST)
    assert found is not None
    assert found.reusable == 2000


@pytest.mark.parametrize(
    ("matched", "prompt", "intact"), [(1656, 1800, True), (1655, 1800, False), (500, None, None)]
)
def test_last_prompt_is_intact_when_it_is_matched_to_its_last_block(
    matched: int, prompt: int | None, intact: bool | None
) -> None:
    found = collapse(replace(CUT, matched=matched), replace(LAST, prompt=prompt))
    assert found is not None
    assert found.intact is intact


def test_header_is_read_in_any_case_and_order() -> None:
    said = "reason=cut;held=1890 ; path=reuse; prompt=2135; matched=1856"
    assert outcome_of({"X-Antiphon-Reuse": said}) == Outcome("reuse", "cut", 1856, 2135, 1890)
    assert outcome_of({"a": "b", "x-antiphon-reuse": "path=cold; matched=0; reason=first"}) == Outcome(
        "cold", "first", 0
    )


@pytest.mark.parametrize(
    "said",
    ["", ";;;", "path", "path=; matched=-1", "path=warm; matched=1.5", f"matched={'9' * 5000}", "matched=²"],
)
def test_what_is_malformed_counts_as_not_told(said: str) -> None:
    assert replace(outcome_of({"x-antiphon-reuse": said}), reason=None) == Outcome()
    assert outcome_of({}) == Outcome()
