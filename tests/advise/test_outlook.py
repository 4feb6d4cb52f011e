"""Expected TTFT, and that it is what the router itself would expect."""

from __future__ import annotations

import itertools
import random

import pytest

from antiphon_server.advise.engines import KnownRates
from antiphon_server.advise.fate import Fate
from antiphon_server.advise.funnel import funnel
from antiphon_server.advise.hardware import Hardware
from antiphon_server.advise.latency import cached_share, latency, logged
from antiphon_server.advise.outlook import Policy, outlooks
from antiphon_server.advise.turns import turns_of
from antiphon_server.router.plan.forecast import Growth, forecast
from antiphon_server.router.plan.rates import Rates, Work
from antiphon_server.router.plan.reasons import Path
from antiphon_server.traces.trace import Call
from doubles.traffic import growing, traffic

# 1 ms a token, 0.1 s a leg; pulls: 10 ms and 0.1 ms a token. No attention, so that it can be done by hand.
SIMPLE = Hardware("simple", 1000, 0.1, 1e-3, 0.0, 0.01, 1e-4)
TURNS = turns_of(traffic((Call(1000, 100), Call(1300, 100, gap=1.0, shared=1100))))
KEPT = [Fate.FIRST, Fate.KEPT]
NO_APPEND = Policy(paths=frozenset({Path.COLD, Path.REUSE}))


def test_cold_prefill_computes_all_and_reuse_pulls_what_repeats() -> None:
    first, second = outlooks(TURNS, KEPT, SIMPLE, NO_APPEND, warm=False)
    # A leg of 1,000 tokens, and decode fetches them: in the forecast it never fetches what it holds itself.
    assert first.off == pytest.approx(0.1 + 1.0 + 0.01 + 0.1)
    assert first.on == first.off
    assert second.off == pytest.approx(0.1 + 1.3 + 0.01 + 0.02)
    # 200 new tokens are computed, 1,100 pulled, 200 handed over.
    assert second.on == pytest.approx(0.1 + 0.2 + 0.01 + 0.11 + 0.01 + 0.02)
    assert (second.path, second.pulled) == (Path.REUSE, 1100)
    assert [second.work_off, second.work_on] == pytest.approx([1.4, 0.1 + 0.2 + 0.12])


def test_warm_prefill_lacks_the_answer_only() -> None:
    second = outlooks(TURNS, KEPT, SIMPLE, NO_APPEND, warm=True)[1]
    # 1,000 tokens are there: the answer's 100 and 200 new ones are computed, or the answer is pulled.
    assert second.off == pytest.approx(0.1 + 0.3 + 0.01 + 0.02)
    assert second.on == pytest.approx(0.1 + 0.2 + 0.01 + 0.01 + 0.01 + 0.02)
    assert second.pulled == 100


def test_appends_take_the_shortest_way_while_they_stall_others_little_enough() -> None:
    second = outlooks(TURNS, KEPT, SIMPLE, Policy(stall=0.2), warm=False)[1]
    assert second.path is Path.APPEND
    assert [second.on, second.burden, second.work_on, second.pulled] == pytest.approx([0.3, 0.2, 0.0, 0])
    assert outlooks(TURNS, KEPT, SIMPLE, Policy(stall=0.19), warm=False)[1].path is Path.REUSE


def test_prefixes_below_the_threshold_are_computed() -> None:
    def path(least: int) -> Path:
        policy = Policy(NO_APPEND.paths, least=least)
        return outlooks(TURNS, KEPT, SIMPLE, policy, warm=False)[1].path

    assert (path(1100), path(1101)) == (Path.REUSE, Path.COLD)


@pytest.mark.parametrize("fate", [Fate.IDLE, Fate.CHANCE, Fate.EVICTED, Fate.UNKNOWN])
def test_what_is_gone_is_computed_as_today(fate: Fate) -> None:
    second = outlooks(TURNS, [Fate.FIRST, fate], SIMPLE, Policy(), warm=False)[1]
    assert (second.path, second.on) == (Path.COLD, second.off)


def test_rewritten_histories_are_never_appended() -> None:
    turns = turns_of(traffic((Call(1000, 100), Call(1300, 100, gap=1.0, shared=800))))
    second = outlooks(turns, KEPT, SIMPLE, Policy(), warm=False)[1]
    assert (second.path, second.pulled) == (Path.REUSE, 800)


def test_no_turn_is_expected_to_be_slower_with_reuse() -> None:
    for lost, warm, gap in itertools.product((0, 300), (False, True), (0, 1)):
        turns = turns_of(traffic(growing(6, start=3000, lost=lost, gap=float(gap))))
        fates = [Fate.KEPT if turn.index else Fate.FIRST for turn in turns]
        for outlook in outlooks(turns, fates, SIMPLE, Policy(), warm=warm):
            assert outlook.on <= outlook.off + 1e-9


def test_forecast_is_the_one_of_a_router_that_has_learnt_these_rates() -> None:
    known, learnt = KnownRates(SIMPLE), Rates(clock=lambda: 0.0)
    legs = [
        Work(new, new + before, pulled=pulled)
        for new, before, pulled in itertools.product((50, 400, 3000), (0, 2000, 9000), (0, 100, 1500, 30_000))
    ]
    for work in random.Random(1).choices(legs, k=400):
        learnt.saw_prefill("p", work, known.prefill("p", work) or 0.0)
        learnt.saw_append("d", Work(work.new, work.context), SIMPLE.prefill(work.new, work.context))
        learnt.saw_handed_over("d", Work(0, work.new, pulled=work.new), SIMPLE.pulling(work.new))
    for held, new in ((500, 100), (20_000, 300), (90_000, 4000)):
        expected = [
            forecast(
                Growth(held, new, known=True),
                rates,
                prefill="p",
                decode="d",
                same_prefill=True,
                streams=0,
                room=1.0,
            )
            for rates in (known, learnt)
        ]
        for path in ("cold", "reuse", "append"):
            assert getattr(expected[0], path) == pytest.approx(getattr(expected[1], path), rel=0.05)


def test_latency_sums_up_by_hand() -> None:
    found = latency(outlooks(TURNS, KEPT, SIMPLE, NO_APPEND, warm=False))
    assert found is not None
    assert found.off.mean == pytest.approx((1.21 + 1.43) / 2)
    assert found.on.mean == pytest.approx((1.21 + 0.45) / 2)
    assert found.gain == pytest.approx(1 - 0.83 / 1.32)
    assert found.work == pytest.approx((1.1 + 0.42) / (1.1 + 1.4))
    assert dict(found.paths) == {"cold": 0.5, "reuse": 0.5}


def test_tokens_add_up_by_where_they_go() -> None:
    turns = turns_of(
        traffic(
            (
                Call(1000, 100),
                Call(1300, 100, gap=1.0, shared=1100),  # used
                Call(1600, 100, gap=900.0, shared=1400),  # gone
                Call(1000, 100, gap=1.0, shared=200),  # 800 of what was held are written anew
                Call(1050, 100, gap=None, shared=1000),  # not told
            )
        )
    )
    fates = [Fate.FIRST, Fate.KEPT, Fate.IDLE, Fate.KEPT, Fate.UNKNOWN]
    found = funnel(turns, fates, outlooks(turns, fates, SIMPLE, Policy(), warm=False))
    assert (found.total, found.first) == (5950, 1000)
    assert (found.fresh, found.rewritten) == (200 + 200 + 0 + 0, 800 + 50)
    assert (found.used + found.short, found.gone, found.unknown) == (1100 + 200, 1400, 1000)
    parts = (found.first, found.fresh, found.rewritten, found.gone, found.unknown, found.short, found.used)
    assert sum(parts) == found.total


def test_logged_ttft_is_told_by_path() -> None:
    calls = [
        Call(10, 1, ttft=1.0, path="cold"),
        Call(10, 1, ttft=3.0, path="cold"),
        Call(10, 1, ttft=0.5, path="append"),
        Call(10, 1),
    ]
    found = {part.path: part.ttft for part in logged(turns_of(traffic(calls)))}
    assert (found["cold"].count, found["cold"].mean, found["append"].p99) == (2, 2.0, 0.5)


def test_what_prefills_own_cache_had_is_taken_from_turns_that_used_nothing_else() -> None:
    calls = (
        Call(1000, 100, cached=64),  # a first turn says nothing of the conversation
        Call(1300, 100, shared=1100, cached=500),  # of the last prompt's 1,000
        Call(1600, 100, shared=1400, cached=1400, path="reuse"),  # what it had came from decode
        Call(1900, 100, shared=1700, cached=1600, path="cold"),  # all of 1,600
    )
    assert cached_share(turns_of(traffic(calls))) == pytest.approx((500 + 1600) / (1000 + 1600))
    assert cached_share(TURNS) is None
