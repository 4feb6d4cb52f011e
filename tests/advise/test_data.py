"""The verdict on recorded traffic, against figures that were counted by hand in its files.

Of a coding agent's session, ``in`` and ``out`` are lengths, ``think_time`` is the gap, and ``hash_ids`` are
blocks of 64 tokens: what repeats is 64 times the ids that are equal from the beginning, and where all full
ones are, the answer is taken to repeat as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon_server.advise.advice import Advice, Asked, advise
from antiphon_server.advise.hardware import Given
from antiphon_server.advise.reasons import Cause
from antiphon_server.advise.verdict import Verdict
from antiphon_server.traces.read import read

DATA = Path(__file__).parent.parent / "data"
QWEN = Given("qwen3-32b", "p5en")


def _look(name: str, given: Given = QWEN, **asked: Any) -> Advice:
    return advise(read([DATA / name]), Asked(given, **asked))


def _session(number: str, given: Given = QWEN, **asked: Any) -> Advice:
    return _look(f"coding_agents/trace_{number}.json", given, **asked)


def _first(found: Advice) -> Cause:
    return found.judgement.reasons[0].cause


def _cautions(found: Advice) -> list[Cause]:
    return [caution.cause for caution in found.judgement.cautions]


def test_coding_agents_turn_it_on_with_care() -> None:
    found = _look("coding_agents")
    # No session tells cached tokens.
    assert (found.judgement.verdict, _cautions(found)) == (Verdict.CARE, [Cause.UNSEEN])
    # 24 sessions of 231 requests, so 207 come back; the sum of "in" is 13,314,029, of first ones 1,669,022.
    part = found.repetition
    assert (part.calls, part.conversations, part.returning) == (231, 24, 207)
    assert (part.tokens, part.returning_tokens) == (13_314_029, 13_314_029 - 1_669_022)
    # Two lose more than a tenth of their history: 0228's second request and 0427's 23rd.
    assert part.rewritten == 2
    # Both states are told, and neither stands for the other.
    assert found.cold.gain > 0.5 > 0.1 > found.warm.gain > 0.0
    text = found.judgement.reasons[0].text
    assert f"{found.cold.gain:.0%}" in text
    assert f"{found.warm.gain:.0%}" in text
    assert "does not say which is yours" in text


REPEATED_0440 = (102_088 + 299, 102_582 + 2242, 112_777 + 256)
"""All full blocks come back each time, so all of the last prompt and its answer does."""


def test_0440_by_hand() -> None:
    # Four requests at 0, 42, 1195 and 1239 s that take 7.03, 43.38 and 6.56 s: gaps of 35.0, 1109.6, 37.4 s.
    found = _session("0440")
    assert found.repetition.repeated == sum(REPEATED_0440)
    assert found.repetition.returning_tokens == 102_582 + 112_777 + 113_132
    assert dict(found.retention.gaps)[0.5] == pytest.approx(37.4, abs=0.1)
    assert dict(found.retention.gaps)[0.99] == pytest.approx(1109.6, abs=0.1)


@pytest.mark.parametrize(("keep", "kept"), [(34.0, ()), (35.0, (0,)), (38.0, (0, 2)), (2000.0, (0, 1, 2))])
def test_gaps_of_0440_against_how_long_is_kept(keep: float, kept: tuple[int, ...]) -> None:
    found = _session("0440", keep=keep)
    share = sum(REPEATED_0440[i] for i in kept) / sum(REPEATED_0440)
    assert found.retention.chosen.found == pytest.approx(share)
    assert found.retention.gone == pytest.approx(1 - share)
    if not kept:
        assert (found.judgement.verdict, _first(found)) == (Verdict.OFF, Cause.GAPS)
        assert found.cold.gain == 0.0
    else:
        assert found.judgement.verdict is Verdict.CARE
        assert (Cause.GAPS in _cautions(found)) is (share < 0.8)


def test_0228_whose_second_request_rewrites_its_history() -> None:
    found = _session("0228")
    # 142 of the first prompt's 262 blocks are equal: 9,088 of the 16,823 + 122 tokens that were held.
    assert found.repetition.rewritten == 1
    assert found.repetition.lost == 16_945 - 9_088
    # It comes 2,379 s later, when little is kept any more; the other gaps are 3 to 20 s.
    assert found.retention.chosen.keep == 60.0
    assert found.retention.idle == pytest.approx(9_088 / found.repetition.repeated)
    assert (found.judgement.verdict, _cautions(found)) == (Verdict.CARE, [Cause.UNSEEN, Cause.FEW])


def test_0427_whose_23rd_request_rewrites_its_history() -> None:
    found = _session("0427")
    # 209 of 650 blocks: 13,376 of 41,610 + 654 tokens; 13.5 hours later.
    assert found.repetition.rewritten == 1
    assert found.repetition.lost >= 42_258 - 13_376
    # Of its 25 gaps, four are longer than 480 s: 923.7, 1,795.1, 48,546.7 and 794.1 s.
    kept = _session("0427", keep=480.0).retention
    gone = (28_032 + 1_397, 33_506 + 4_133, 13_376, 42_748 + 2_312)
    assert kept.idle == pytest.approx(sum(gone) / found.repetition.repeated, rel=0.02)
    assert (found.judgement.verdict, _cautions(found)) == (Verdict.CARE, [Cause.UNSEEN, Cause.FEW])


def test_0036_whose_context_grows_fourfold_in_one_step() -> None:
    found = _session("0036")
    # 256 of 259 blocks of the first prompt come back 3,356 s later, in a prompt of 72,464 tokens: 381 of the
    # 16,765 tokens that were held are lost, which is no rewriting.
    assert (found.repetition.lost, found.repetition.rewritten) == (381, 0)
    second = found.repetition.stages[1]
    assert [second.prompt, second.share] == pytest.approx([72_464, 256 * 64 / 72_464])
    # The other seven gaps are 0 to 63 s: two minutes are enough.
    assert found.retention.chosen.keep == 120.0
    assert found.retention.idle == pytest.approx(16_384 / found.repetition.repeated)
    assert found.judgement.verdict is Verdict.CARE


@pytest.mark.parametrize(("name", "causes"), [("tau_bench", [Cause.ESTIMATED]), ("swe_agent", None)])
def test_traffic_without_times_is_not_judged(name: str, causes: list[Cause] | None) -> None:
    found = _look(name)
    assert (found.judgement.verdict, _first(found)) == (Verdict.UNKNOWN, Cause.TIMES)
    assert causes is None or _cautions(found) == causes


def test_tau_bench_with_an_assumed_gap() -> None:
    # Ten conversations with 110 answers of the assistant; the histories only grow.
    found = _look("tau_bench", gap=20.0)
    part = found.repetition
    assert (part.conversations, part.calls, part.lost) == (10, 110, 0)
    # Prompts of some 2,000 tokens: a saving of well below 100 ms a turn.
    assert found.judgement.verdict is Verdict.CARE
    assert Cause.SMALL in _cautions(found)
    assert 0.02 < found.cold.saved < 0.1
    assert _look("tau_bench", gap=20.0, keep=19.0).judgement.verdict is Verdict.OFF


def test_tau_bench_is_too_short_for_a_model_that_computes_fast() -> None:
    # Of an 8B model's KV, 131,072 bytes at 50 GB/s are 2.62 us a token; computing takes 4.04 us and 0.066 ns
    # for its square, so with 8 ms a pull both are equal at 4,625.6 tokens: no prompt is so long.
    found = _look("tau_bench", Given("llama-3.1-8b", "p5en", bandwidth=50.0), gap=20.0)
    assert found.interconnect.break_even == 4626
    assert found.interconnect.above == 0.0
    assert (found.judgement.verdict, _first(found)) == (Verdict.OFF, Cause.SHORT)


def test_coding_agents_over_a_slow_interconnect_only_append() -> None:
    # 262,144 bytes a token at 1 GB/s: 262 us, against 17 us to compute it.
    found = _look("coding_agents", Given("qwen3-32b", "p5en", bandwidth=1.0))
    assert (found.judgement.verdict, _cautions(found)) == (Verdict.CARE, [Cause.UNSEEN, Cause.INTERCONNECT])
    assert found.settings.router[0].value == "[cold, append]"
