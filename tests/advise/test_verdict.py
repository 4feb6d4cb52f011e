"""Every verdict, and the figure across whose limit it turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from antiphon_server.advise.advice import Advice, Asked, NoTurnsError, advise
from antiphon_server.advise.answers import answers
from antiphon_server.advise.hardware import Given
from antiphon_server.advise.reasons import Cause
from antiphon_server.advise.verdict import Verdict
from antiphon_server.traces.trace import Call, Trace
from doubles.traffic import growing, timed, traffic

QWEN = Given("qwen3-32b", "p5en")


def _look(trace: Trace, given: Given = QWEN, **asked: Any) -> Advice:
    return advise(trace, Asked(given, **asked))


def _many(number: int = 20, turns: int = 10, **more: Any) -> Trace:
    """Conversations of which prefill's cache has nothing, unless ``cached`` says otherwise."""
    more.setdefault("cached", 0)
    return traffic(*(growing(turns, **more) for _ in range(number)))


def _causes(found: Advice) -> list[Cause]:
    return [reason.cause for reason in found.judgement.reasons]


def _cautions(found: Advice) -> list[Cause]:
    return [reason.cause for reason in found.judgement.cautions]


def test_agents_with_long_histories_and_short_gaps_turn_it_on() -> None:
    found = _look(_many())
    assert found.judgement.verdict is Verdict.ON
    assert _causes(found) == [Cause.GAIN]
    assert found.judgement.cautions == ()
    # 20,000 tokens at first, 300 + 500 more each turn; all but the first turn's append to the one before.
    assert found.repetition.share == pytest.approx(1 - 9 * 500 / sum(20_000 + 800 * i for i in range(1, 10)))


@pytest.mark.parametrize(("gap", "verdict"), [(480.0, Verdict.ON), (481.0, Verdict.OFF)])
def test_gaps_above_keep_turn_it_off(gap: float, verdict: Verdict) -> None:
    found = _look(_many(gap=gap), keep=480.0)
    assert found.judgement.verdict is verdict
    if verdict is Verdict.OFF:
        assert _causes(found)[0] is Cause.GAPS
        assert found.retention.gone == 1.0
        assert found.cold.gain == 0.0


def test_gaps_that_no_keep_outlasts_turn_it_off() -> None:
    assert _look(_many(gap=3600.0)).judgement.verdict is Verdict.ON
    found = _look(_many(gap=3601.0))
    assert (found.judgement.verdict, _causes(found)[0]) == (Verdict.OFF, Cause.GAPS)


@pytest.mark.parametrize(("late", "verdict"), [(35, Verdict.ON), (36, Verdict.CARE)])
def test_a_fifth_that_comes_too_late_asks_for_care(late: int, verdict: Verdict) -> None:
    # Of 180 conversations of two turns, all alike, ``late`` come back after an hour; 36 are a fifth.
    pairs = [growing(2, gap=7200.0 if i < late else 10.0, cached=0) for i in range(180)]
    found = _look(traffic(*pairs), keep=480.0)
    assert found.judgement.verdict is verdict
    assert _cautions(found) == ([] if verdict is Verdict.ON else [Cause.GAPS])


def test_short_prefixes_turn_it_off() -> None:
    found = _look(_many(start=200, new=40, answer=30))
    # 200 + 9 x 70 tokens at most. Fetching takes 8.2 ms and 10.13 us a token, computing 16.75 us a token and
    # 0.268 ns for its square: equal at 1,182.3 tokens.
    assert found.interconnect.break_even == 1183
    assert (found.judgement.verdict, _causes(found)[0]) == (Verdict.OFF, Cause.SHORT)
    assert [(s.name, s.value) for s in found.settings.router] == [("paths", "[cold]")]


@pytest.mark.parametrize(("start", "short"), [(3220, True), (3221, False)])
def test_prefixes_are_long_enough_from_the_break_even_on(start: int, short: bool) -> None:
    # 8 ms and 15.42 us a token to fetch, by 17 GB/s: equal at 3,520.1 tokens. A second turn repeats start +
    # 300 tokens.
    found = _look(_many(turns=2, start=start, number=200), Given("qwen3-32b", "p5en", bandwidth=17.0))
    assert found.interconnect.break_even == 3521
    assert (Cause.SHORT in _causes(found)) is short
    assert (found.judgement.verdict is Verdict.OFF) is short


def test_one_shot_traffic_turns_it_off() -> None:
    once = traffic(*(growing(1) for _ in range(50)))
    found = _look(once)
    assert (found.judgement.verdict, _causes(found)) == (Verdict.OFF, [Cause.ONE_SHOT])
    again = traffic(*(growing(1) for _ in range(47)), *(growing(2) for _ in range(3)))
    assert _causes(_look(again)) != [Cause.ONE_SHOT]


def test_mostly_first_turns_turn_it_off_and_say_so() -> None:
    # One returning turn to 19 first ones: 5 % of the tokens repeat.
    trace = traffic(*(growing(1) for _ in range(180)), *(growing(2) for _ in range(10)))
    found = _look(trace)
    assert (found.judgement.verdict, _causes(found)[0]) == (Verdict.OFF, Cause.ONE_SHOT)
    assert found.funnel.share(found.funnel.first) == pytest.approx(
        190 * 20_000 / (190 * 20_000 + 10 * 20_800)
    )


@pytest.mark.parametrize(("named", "verdict"), [(101, Verdict.ON), (100, Verdict.OFF)])
def test_turns_without_ids_turn_it_off_from_half_on(named: int, verdict: Verdict) -> None:
    ours = [growing(101 if named == 101 else 100)]
    others = [(Call(20_000, 300, reason="anonymous"),) for _ in range(100)]
    found = _look(traffic(*ours, *others))
    if verdict is Verdict.OFF:
        assert (found.judgement.verdict, _causes(found)) == (Verdict.OFF, [Cause.ANONYMOUS])
    else:
        assert found.judgement.verdict is not Verdict.OFF


def test_histories_that_are_always_rewritten_turn_it_off() -> None:
    # Only the first 1,000 of 20,000 tokens stay.
    trace = traffic(*([_rewriting(20, keeps=1_000)] * 20))
    found = _look(trace)
    assert found.judgement.verdict is Verdict.OFF
    assert Cause.REWRITTEN in _causes(found)
    assert Cause.REWRITTEN in _cautions(found)


@pytest.mark.parametrize(("often", "verdict"), [(19, Verdict.ON), (20, Verdict.CARE)])
def test_one_compaction_in_ten_turns_asks_for_care(often: int, verdict: Verdict) -> None:
    # 200 returning turns; a compacted one keeps 9,000 of 20,300 tokens.
    pairs = [_rewriting(2, keeps=9_000) if i < often else growing(2, cached=0) for i in range(200)]
    found = _look(traffic(*pairs))
    assert found.repetition.rewritten == often
    assert found.judgement.verdict is verdict
    assert _cautions(found) == ([] if verdict is Verdict.ON else [Cause.REWRITTEN])


def _rewriting(turns: int, *, keeps: int) -> Sequence[Call]:
    first, *rest = (Call(20_000, 300, gap=10.0, seconds=5.0, shared=keeps) for _ in range(turns))
    return (Call(first.prompt, first.answer, seconds=5.0), *rest)


def test_little_that_repeats_turns_it_off() -> None:
    # 2,000 tokens are answered, and 200,000 new ones follow.
    calls = (Call(2_000, 100), Call(202_100, 100, gap=5.0, shared=2_100))
    found = _look(traffic(*([calls] * 100)))
    assert (found.judgement.verdict, _causes(found)[0]) == (Verdict.OFF, Cause.NEW)


def test_a_cache_of_prefills_own_that_has_all_turns_it_off() -> None:
    def trace(cached: float) -> Trace:
        calls = growing(4, answer=20, new=40_000)  # too much to be appended
        told = [calls[0]]
        for last, call in pairwise(calls):
            told.append(
                Call(
                    call.prompt,
                    call.answer,
                    gap=call.gap,
                    seconds=call.seconds,
                    shared=call.shared,
                    cached=int(cached * last.prompt),
                )
            )
        return traffic(*([tuple(told)] * 20))

    full, none = _look(trace(1.0)), _look(trace(0.0))
    assert (full.judgement.verdict, _causes(full)[0]) == (Verdict.OFF, Cause.WARM)
    assert none.judgement.verdict in (Verdict.ON, Verdict.CARE)
    assert [full.cached, none.cached] == pytest.approx([1.0, 0.0])
    assert "had 0% of what it could have" in none.judgement.reasons[0].text


@pytest.mark.parametrize(
    ("model", "start", "answer", "cached", "verdict"),
    [
        # What is saved where the cache is warm: the answer's tokens and a hand-over, in five turns of six.
        ("qwen3-32b", 60_000, 1110, None, Verdict.CARE),  # 9.97 % of the mean TTFT
        ("qwen3-32b", 60_000, 1120, None, Verdict.ON),  # 10.05 %
        ("qwen3-32b", 60_000, 1110, 0, Verdict.ON),
        ("qwen3-32b", 20_000, 740, None, Verdict.CARE),  # 11.9 %, but 19.9 ms a turn
        ("qwen3-32b", 20_000, 750, None, Verdict.ON),  # 20.1 ms
    ],
)
def test_a_gain_that_hinges_on_a_cache_the_log_does_not_tell_asks_for_care(
    model: str, start: int, answer: int, cached: int | None, verdict: Verdict
) -> None:
    found = _look(_many(100, 6, start=start, answer=answer, cached=cached), Given(model, "p5en"))
    assert (found.cold.gain > 0.25, found.cold.saved > 0.1) == (True, True)
    assert found.judgement.verdict is verdict
    assert _cautions(found) == ([Cause.UNSEEN] if verdict is Verdict.CARE else [])
    for caution in found.judgement.cautions:
        assert f"only {found.warm.saved * 1e3:.0f} ms a turn" in caution.text
        assert "vllm:prefix_cache_hits_total" in caution.text


def test_where_nothing_pays_the_cache_is_no_matter() -> None:
    found = _look(_many(number=60, turns=3, gap=481.0), keep=480.0)
    assert (found.judgement.verdict, _cautions(found)) == (Verdict.OFF, [Cause.GAPS])


def test_a_slow_interconnect_leaves_appends() -> None:
    found = _look(_many(), Given("qwen3-32b", "p5en", bandwidth=2.0))
    # 262,144 bytes a token at 2 GB/s are 131 us; computing takes 17 us and 11 us of attention.
    assert found.interconnect.slow
    assert found.judgement.verdict is Verdict.CARE
    assert Cause.INTERCONNECT in _cautions(found)
    assert found.settings.router[0].value == "[cold, append]"
    fast = _look(_many(), Given("qwen3-32b", "p5en", bandwidth=20.0))
    assert not fast.interconnect.slow
    assert fast.judgement.verdict is Verdict.ON


def test_a_slow_interconnect_turns_it_off_where_nothing_can_be_appended() -> None:
    # 40,000 new tokens stall a decode engine's other streams for longer than half a second.
    trace = _many(new=40_000, turns=4, number=60)
    slow = _look(trace, Given("qwen3-32b", "p5en", bandwidth=0.5))
    assert (slow.judgement.verdict, _causes(slow)[0]) == (Verdict.OFF, Cause.INTERCONNECT)
    assert _look(trace).judgement.verdict is not Verdict.OFF


def test_a_model_with_sliding_windows_turns_it_off() -> None:
    found = _look(_many(), Given("gpt-oss-120b", "p5en"))
    assert (found.judgement.verdict, _causes(found)) == (Verdict.OFF, [Cause.UNSUPPORTED])


@pytest.mark.parametrize(("turns", "verdict"), [(3, Verdict.UNKNOWN), (4, Verdict.CARE)])
def test_few_turns_say_nothing_or_little(turns: int, verdict: Verdict) -> None:
    found = _look(traffic(growing(turns)))
    assert found.judgement.verdict is verdict
    assert Cause.FEW in (_causes(found) if verdict is Verdict.UNKNOWN else _cautions(found))


def test_without_times_nothing_can_be_said_unless_a_gap_is_assumed() -> None:
    trace = _many(gap=None)
    found = _look(trace)
    assert (found.judgement.verdict, _causes(found)) == (Verdict.UNKNOWN, [Cause.TIMES])
    assert _look(trace, gap=10.0).judgement.verdict is Verdict.ON
    assert _look(trace, gap=5000.0).judgement.verdict is Verdict.OFF
    assert "180 gaps that the log does not tell are taken for 10 s" in _look(trace, gap=10.0).source.notes


@pytest.mark.parametrize(
    ("untold", "verdict"), [(18, Verdict.ON), (19, Verdict.CARE), (90, Verdict.CARE), (91, Verdict.UNKNOWN)]
)
def test_what_the_log_does_not_tell_is_not_taken_for_new(untold: int, verdict: Verdict) -> None:
    # 180 turns come back, all with 20,800 tokens.
    pairs = [growing(2, cached=0) for _ in range(180)]
    blank = [(first, Call(second.prompt, second.answer, gap=10.0, seconds=5.0)) for first, second in pairs]
    found = _look(traffic(*blank[:untold], *pairs[untold:]))
    assert found.repetition.told == pytest.approx(1 - untold / 180)
    assert found.repetition.share == pytest.approx(20_300 / 20_800)
    assert found.interconnect.typical == 20_300
    assert found.judgement.verdict is verdict
    told = _causes(found) if verdict is Verdict.UNKNOWN else _cautions(found)
    assert (Cause.UNTOLD in told) is (verdict is not Verdict.ON)


def test_estimated_lengths_ask_for_care() -> None:
    calls = [growing(10, cached=0)] * 20
    assert _cautions(_look(traffic(*calls, estimated=True))) == [Cause.ESTIMATED]


@pytest.mark.parametrize(
    ("conversations", "verdict"), [(5, Verdict.ON), (6, Verdict.CARE), (11, Verdict.CARE), (12, Verdict.OFF)]
)
def test_more_conversations_than_decode_has_room_for(conversations: int, verdict: Verdict) -> None:
    # Active for 10 x 5 s + 9 x 10 s = 140 s. Kept for 10 s, its turns pin 23,900 tokens for 10 s each: 17,071
    # tokens on average. A decode engine may keep half of 200,000: 5.9 conversations.
    found = _look(_many(), Given("qwen3-32b", "p5en", capacity=200_000), conversations=conversations)
    assert found.retention.options[0].pinned == pytest.approx(
        sum(10 * (20_300 + 800 * i) for i in range(10)) / 140
    )
    assert found.judgement.verdict is verdict
    wanted = {Verdict.ON: [], Verdict.CARE: [Cause.EVICTED], Verdict.OFF: [Cause.EVICTED]}[verdict]
    assert _cautions(found) == wanted


@pytest.mark.parametrize(
    ("capacity", "decodes", "room"),
    [
        (200_000, 1, ("11 conversations", "5 conversations")),
        (200_000, 2, ("23 conversations", "11 conversations")),
        (40_000, 1, ("2 conversations", "1 conversation")),
        (34_000, 1, ("1 conversation", "less than one conversation")),
    ],
)
def test_how_many_conversations_fit_is_said_where_it_cannot_be_judged(
    capacity: int, decodes: int, room: tuple[str, str]
) -> None:
    # 17,071 tokens for each, as above.
    given = Given("qwen3-32b", "p5en", capacity=capacity)
    found = _look(_many(), given, keep=10.0, decodes=decodes)
    assert found.crowd is not None
    assert found.crowd.held == pytest.approx(
        capacity * decodes * 140 / sum(10 * (20_300 + 800 * i) for i in range(10))
    )
    told = " ".join(answers(found)[2].text)
    assert f"decode's KV has room for {room[0]};" in told
    assert f"the 50% of it that the router keeps for them by default, for {room[1]}." in told
    assert "was not judged: pass --conversations" in told


def test_where_it_is_judged_nothing_is_to_be_passed() -> None:
    timely = traffic(*(timed(growing(10), begin=7.0 * i) for i in range(20)))
    unknown = _look(_many(), Given(kv_bytes=262_144, bandwidth=58.0, prefill_rate=50_000.0))
    assert unknown.crowd is None
    for found in (_look(_many(), conversations=5), _look(timely), unknown):
        assert "not judged" not in " ".join(answers(found)[2].text)


def test_a_log_with_a_clock_shows_what_had_to_make_room() -> None:
    talks = [timed(growing(10, gap=60.0, cached=0), begin=i * 7.0) for i in range(30)]
    wide = _look(traffic(*talks), Given("qwen3-32b", "p5en", capacity=3_000_000))
    assert (wide.judgement.verdict, wide.retention.evicted) == (Verdict.ON, 0.0)
    narrow = _look(traffic(*talks), Given("qwen3-32b", "p5en", capacity=100_000))
    assert (narrow.judgement.verdict, _causes(narrow)[0]) == (Verdict.OFF, Cause.EVICTED)
    assert _cautions(narrow) == [Cause.EVICTED]  # once, not again by averages
    assert Cause.EVICTED in _cautions(_look(traffic(*talks), conversations=10_000))
    assert narrow.retention.pinned_most is not None
    assert narrow.retention.pinned_most <= 50_000 + 28_000


@pytest.mark.parametrize(("apart", "verdict"), [(40.0, Verdict.ON), (0.1, Verdict.OFF)])
def test_branches_at_once_turn_it_off(apart: float, verdict: Verdict) -> None:
    # Eight turns that go on from the first one, each of 30 s: one after the other, or together.
    def conversation(begin: float) -> tuple[Call, ...]:
        first = Call(20_000, 300, at=begin, seconds=5.0)
        branch = Call(20_800, 300, seconds=30.0, shared=20_300, cached=0)
        return (first, *(replace(branch, at=begin + 15 + apart * i) for i in range(8)))

    found = _look(traffic(*(conversation(500.0 * i) for i in range(20))))
    assert found.judgement.verdict is verdict
    if verdict is Verdict.OFF:
        assert _causes(found)[0] is Cause.PARALLEL
        assert found.retention.busy == pytest.approx(7 / 8)


def test_small_gains_ask_for_care() -> None:
    # 1,700 tokens: some 30 ms of computing and a hop.
    found = _look(_many(start=1_700, new=20, answer=20))
    assert found.judgement.verdict is Verdict.CARE
    assert Cause.SMALL in _cautions(found)


@pytest.mark.parametrize("trace", [traffic(), traffic(()), traffic((Call(0, 5),))])
def test_no_turns_are_no_answer(trace: Trace) -> None:
    with pytest.raises(NoTurnsError, match="no call with prompt tokens"):
        _look(trace)


@pytest.mark.parametrize(("unnamed", "verdict"), [(1, Verdict.ON), (2, Verdict.CARE), (20, Verdict.CARE)])
def test_ids_have_to_be_sent_first(unnamed: int, verdict: Verdict) -> None:
    trace = _many()
    told = [replace(c, guessed=i < unnamed) for i, c in enumerate(trace.conversations)]
    found = _look(replace(trace, conversations=tuple(told)))
    assert found.judgement.verdict is verdict
    assert _cautions(found) == ([Cause.ANONYMOUS] if verdict is Verdict.CARE else [])
    for caution in found.judgement.cautions:
        assert f"{unnamed * 5}% of the calls name no conversation" in caution.text
        assert "Nothing is reused before ids are sent: wrap the client with the SDK" in caution.text
        assert "X-Session-ID" in caution.text


def test_ids_are_no_matter_where_it_does_not_pay() -> None:
    trace = _many(gap=481.0)
    guessed = replace(trace, conversations=tuple(replace(c, guessed=True) for c in trace.conversations))
    found = _look(guessed, keep=480.0)
    assert (found.judgement.verdict, _cautions(found)) == (Verdict.OFF, [Cause.GAPS])


@pytest.mark.parametrize(("untold", "verdict"), [(2, Verdict.ON), (3, Verdict.CARE), (9, Verdict.CARE)])
def test_turns_whose_gap_is_not_told_are_taken_to_be_like_the_others(untold: int, verdict: Verdict) -> None:
    pairs = [growing(10, cached=0) for _ in range(20)]
    blank = growing(10, cached=0, gap=None)
    whole, found = _look(traffic(*pairs)), _look(traffic(*[blank] * untold, *pairs[untold:]))
    assert found.retention.known == pytest.approx(1 - untold / 20)
    assert found.judgement.verdict is verdict
    assert found.cold.gain == pytest.approx(whole.cold.gain)
    assert (Cause.TIMES in _cautions(found)) is (verdict is Verdict.CARE)


def test_half_of_the_unknown_gaps_are_too_long_where_half_of_the_known_are() -> None:
    calls = [growing(10, cached=0, gap=gap) for gap in (10.0, 5000.0, None, None)] * 5
    known = [growing(10, cached=0, gap=gap) for gap in (10.0, 5000.0)] * 10
    gain, expected = _look(traffic(*calls)).cold.gain, _look(traffic(*known)).cold.gain
    assert gain == pytest.approx(expected, rel=0.02)


def test_an_empty_cache_of_prefills_is_no_reason_against() -> None:
    # Most turns come back too late.
    calls = [growing(10, cached=0, gap=gap) for gap in (5000.0,) * 14 + (10.0,)]
    found = _look(traffic(*calls), keep=480.0)
    assert found.judgement.verdict is Verdict.OFF
    assert Cause.WARM not in _causes(found)
