"""What follows from the turns of a sweep, and how it ends."""

from __future__ import annotations

import dataclasses

import pytest

from antiphon_server.bench.sweep.record import Cache, Place, Sweep, against, cells, differences
from antiphon_server.bench.sweep.table import COLUMNS, markdown, rows
from antiphon_server.bench.sweep.verdict import Limits, verdict
from antiphon_server.bench.timing import Answer, Outcome
from doubles.sweeps import ARMS, LATER, OUTCOMES, PLAN, places, sweep, turn, with_turn


def test_cells_keep_first_turns_apart() -> None:
    found = list(cells(sweep()))
    assert len(found) == 3 * 2 * 3
    assert {(c.cache, c.ttft.n) for c in found} == {(Cache.EMPTY, 3), (Cache.WARM, 3), (Cache.FIRST, 6)}


def test_cell_splits_ttft_by_the_engines_counters() -> None:
    cell = next(c for c in cells(sweep()) if (c.cache, c.length, c.arm) == (Cache.EMPTY, 8000, "reuse"))
    assert (cell.parts.prefill, cell.parts.to_prefill, cell.parts.decode) == (0.5, 0.02, 0.01)
    assert cell.parts.rest == pytest.approx(0.47)
    assert (cell.received, cell.computed, cell.paths) == (2e6, 100, {"reuse (full)": 3})
    assert cell.gaps is not None
    assert cell.gaps.median == pytest.approx(0.1)


def test_median_of_the_repeats_counts() -> None:
    slow = with_turn(sweep(), "reuse", LATER, ttft=99.0)
    cell = next(c for c in cells(slow) if (c.cache, c.length, c.arm) == (Cache.EMPTY, 8000, "reuse"))
    assert cell.ttft.median == 1.0


def test_turns_of_one_place_are_compared_with_each_other() -> None:
    one = next(a for a in against(sweep(), "off", "reuse") if (a.cache, a.length) == (Cache.WARM, 1000))
    assert (one.ratio.value, one.ratio.n) == (4.0, 3)


@pytest.mark.parametrize("cache", [Cache.EMPTY, Cache.WARM])
@pytest.mark.parametrize("arm", ["off", "reuse", "auto"])
def test_one_differing_token_anywhere_fails_and_is_named(arm: str, cache: Cache) -> None:
    place = dataclasses.replace(LATER, phase=cache)
    wrong = with_turn(sweep(), arm, place, answer=Answer((1, 2, 4), "abd"))
    judged = verdict(wrong, Limits())
    assert judged.exit_code == 1
    (found,) = judged.differences
    assert (found.arm, found.place, found.at) == (arm, place, 2)
    text = "\n".join(judged.lines())
    assert "ANSWERS DIFFER in 1 of 72 turns" in text
    assert (
        f"arm {arm}, 8000 tokens, conversation 0, turn 2, repeat 2, prefill's cache {cache}: token 2" in text
    )
    assert "answers identical" not in text


@pytest.mark.parametrize("where", ["arm", "phase"])
def test_answers_that_differ_throughout_fail(where: str) -> None:
    # Consistent within an arm or a state of the cache, so only the comparison across them can tell.
    other = Answer((7, 8), "yz")
    turns = [
        dataclasses.replace(t, timed=dataclasses.replace(t.timed, answer=other))
        if (t.arm == "auto" if where == "arm" else t.place.phase is Cache.WARM)
        else t
        for t in sweep().turns
    ]
    assert len(verdict(sweep(turns), Limits()).differences) == (24 if where == "arm" else 36)


def test_text_that_differs_though_its_tokens_are_equal_fails() -> None:
    wrong = with_turn(sweep(), "reuse", LATER, answer=Answer((1, 2, 3), "abd"))
    assert verdict(wrong, Limits()).exit_code == 1


def test_shorter_answer_differs_where_it_ends() -> None:
    wrong = with_turn(sweep(), "reuse", LATER, answer=Answer((1, 2), "ab"))
    assert differences(wrong)[0].at == 2


def test_other_prompt_is_not_the_same_answer() -> None:
    wrong = with_turn(sweep(), "auto", LATER, prompt="another")
    judged = verdict(wrong, Limits())
    assert judged.exit_code == 1
    assert any("the prompt differs" in fault for fault in judged.faults)


def test_arm_that_differs_from_itself_is_told_apart() -> None:
    wrong = with_turn(sweep(), "off", LATER, answer=Answer((9,), "z"))
    assert any("differs from itself" in fault for fault in verdict(wrong, Limits()).faults)
    other = with_turn(sweep(), "reuse", LATER, answer=Answer((9,), "z"))
    assert not any("differs from itself" in fault for fault in verdict(other, Limits()).faults)


@pytest.mark.parametrize(("least", "code"), [(None, 0), (3.3, 0), (4.1, 1)])
def test_gain_below_what_was_asked_for_fails(least: float | None, code: int) -> None:
    assert verdict(sweep(), Limits(at_least=least)).exit_code == code


def test_gain_is_told_for_the_longest_prompt_with_an_empty_cache() -> None:
    turns = [
        turn(arm, place, 40.0 if arm == "off" and place == dataclasses.replace(LATER, repeat=r) else None)
        for r in (1,)
        for place in places()
        for arm in ARMS
    ]
    found = sweep(turns)
    last = list(verdict(found, Limits()).lines())[-1]
    assert last.startswith(
        "off / reuse at 8000 tokens, prefill's cache empty: 4.00 (95 %: 4.00 to 40.00, n 3)"
    )


def slower(
    ratios: tuple[float, ...], cache: Cache = Cache.WARM, length: int = 1000, number: int = 2
) -> Sweep:
    """Auto takes so many times as long as off in the repeats of one cell."""
    found = sweep()
    for repeat, times in enumerate(ratios, 1):
        found = with_turn(found, "auto", Place(cache, length, repeat, 0, number), ttft=4.0 * times)
    return found


@pytest.mark.parametrize("cache", [Cache.EMPTY, Cache.WARM])
@pytest.mark.parametrize("length", PLAN.lengths)
def test_choice_that_is_slower_at_any_length_fails(length: int, cache: Cache) -> None:
    judged = verdict(slower((1.2, 1.2, 1.3), cache, length), Limits(auto_within=1.05))
    assert judged.exit_code == 1
    assert f"auto / off at {length} tokens, prefill's cache {cache}: 1.20" in judged.faults[0]


def test_choice_that_is_slower_on_first_turns_fails() -> None:
    found = slower((1.2, 1.2, 1.2), Cache.EMPTY, number=1)
    for repeat in (1, 2, 3):
        found = with_turn(found, "auto", Place(Cache.WARM, 1000, repeat, 0, 1), ttft=4.8)
    judged = verdict(found, Limits(auto_within=1.05))
    assert "first turns: 1.20" in judged.faults[0]


def test_choice_within_the_limit_passes() -> None:
    judged = verdict(slower((1.04, 1.04, 1.04)), Limits(auto_within=1.05))
    assert judged.exit_code == 0
    assert not judged.notes


def test_ratio_above_the_limit_is_no_pass_though_noise_may_explain_it() -> None:
    judged = verdict(slower((0.8, 1.3, 1.4)), Limits(auto_within=1.05))
    assert (judged.exit_code, judged.faults) == (1, ())
    (unclear,) = [line for line in judged.lines() if line.startswith("UNCLEAR: ")]
    assert "1.30" in unclear
    assert "measure again with more --repeat" in unclear


def test_scatter_around_a_ratio_within_the_limit_passes() -> None:
    assert verdict(slower((0.8, 1.0, 1.4)), Limits(auto_within=1.05)).exit_code == 0


def test_choice_is_not_judged_unless_asked_for() -> None:
    assert verdict(slower((2.0, 2.0, 2.0)), Limits()).exit_code == 0


@pytest.mark.parametrize("limits", [Limits(at_least=1.0), Limits(auto_within=9.0)])
def test_limit_without_its_arms_fails(limits: Limits) -> None:
    judged = verdict(sweep(arms=("off", "append"), turns=[]), limits)
    assert judged.exit_code == 1
    assert any("name them by --router" in fault for fault in judged.faults)


def test_sweep_that_reused_nothing_fails() -> None:
    turns = [
        dataclasses.replace(t, timed=dataclasses.replace(t.timed, outcome=OUTCOMES["off"]))
        for t in sweep().turns
    ]
    judged = verdict(sweep(turns), Limits())
    assert judged.exit_code == 1
    assert "arm reuse reused nothing: cold (off)" in judged.faults


def test_turn_of_the_reuse_arm_on_another_path_is_noted() -> None:
    found = with_turn(sweep(), "reuse", LATER, outcome=Outcome("cold", 0, "lost"))
    judged = verdict(found, Limits())
    assert judged.exit_code == 0
    assert any("1 of 12 later turns took another path: cold (lost)" in note for note in judged.notes)


def test_turns_that_were_asked_once_are_not_called_identical() -> None:
    once = [t for t in sweep().turns if (t.arm, t.place.repeat, t.place.phase) == ("off", 1, Cache.EMPTY)]
    (told, *_) = verdict(sweep(once, arms=("off",)), Limits()).lines()
    assert told.startswith("answers not compared: no turn was asked more than once")


def test_sweep_without_a_turn_fails() -> None:
    assert verdict(sweep([]), Limits()).exit_code == 1


def test_tables_tell_gain_and_split() -> None:
    row = dict(zip(COLUMNS, next(r for r in rows(sweep(), Cache.EMPTY) if r[1] == "reuse"), strict=True))
    wanted = {"prefix": "1000", "TTFT ms": "1000", "off/arm": "4.00", "P ms": "500", "D→P MB": "2.0"}
    assert wanted.items() <= row.items()
    assert row["paths"] == "3 reuse (full)"


def test_markdown_has_conditions_tables_and_verdict() -> None:
    found = sweep()
    text = markdown(found, verdict(found, Limits()))
    assert "a CPU" in text
    assert f"| {' | '.join(COLUMNS)} |" in text
    assert text.count("| 8000 | auto |") == 3
    assert "- answers identical in all arms: 72 turns" in text
