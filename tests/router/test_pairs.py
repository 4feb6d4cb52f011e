"""Pairs of prefill and decode workers that cannot hand over KV to each other."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon_server.router.fleet.breaker import Breaker, BreakerPolicy, BreakerState
from antiphon_server.router.fleet.build import incompatible
from antiphon_server.router.fleet.pairs import PAIR_POLICY, Pairs
from antiphon_server.router.fleet.worker import Engine, Role, Worker
from doubles.engine_info import info


def worker(url: str, role: Role, rank: int | None = None, **given: Any) -> Worker:
    engine = Engine(url, role, Breaker(BreakerPolicy()))
    engine.info = info(**given)
    return Worker(engine, rank)


def pairs() -> Pairs:
    return Pairs(draw=lambda: 0.0)


@pytest.mark.parametrize(
    ("field", "ours", "theirs", "word"),
    [
        ("protocol", 1, 2, "protocol"),
        ("model", "a", "b", "model"),
        ("vllm", "0.31.0", "0.32.0", "vLLM"),
        ("nixl", "1.4.1", "1.5.1", "NIXL"),
        ("dtype", "bfloat16", "float16", "dtype"),
        ("block_size", 16, 32, "block size"),
        ("tensor_parallel", 2, 4, "tensor parallelism"),
    ],
)
def test_what_differs_parts_them_and_is_named(field: str, ours: Any, theirs: Any, word: str) -> None:
    left, right = (
        worker("http://p", "prefill", **{field: ours}),
        worker("http://d", "decode", **{field: theirs}),
    )
    kept = pairs()
    reason = kept.reason(left, right)
    assert reason is not None
    assert word in reason
    assert str(ours) in reason
    assert str(theirs) in reason
    assert not kept.allowed(left, right, 0.0)


def test_equal_engines_go_together() -> None:
    left, right = worker("http://p", "prefill"), worker("http://d", "decode", engine_id="f", epoch="two")
    assert pairs().allowed(left, right, 0.0)
    assert pairs().reason(left, right) is None


@pytest.mark.parametrize("left", [{"nixl": "unknown"}, {"dtype": None}, {"vllm": ""}])
def test_what_is_not_known_parts_nobody(left: dict[str, Any]) -> None:
    assert incompatible(info(**left), info(dtype="bfloat16")) is None


def test_stock_engine_is_not_judged() -> None:
    assert incompatible(None, info()) is None
    assert incompatible(info(), None) is None


def test_tensor_parallelism_may_differ_where_nothing_goes_back() -> None:
    assert incompatible(info(tensor_parallel=2, reuse=False), info(tensor_parallel=4)) is None


def test_failed_transfers_part_the_pair_and_nobody_else() -> None:
    p1, p2 = worker("http://p1", "prefill"), worker("http://p2", "prefill")
    d1, d2 = worker("http://d1", "decode"), worker("http://d2", "decode")
    kept = pairs()
    for _ in range(PAIR_POLICY.failures):
        assert kept.allowed(p1, d1, 0.0)
        kept.failed(p1, d1, 0.0)
    assert not kept.allowed(p1, d1, 0.0)
    assert kept.reason(p1, d1) == "transfers between them failed"
    assert kept.allowed(p1, d2, 0.0)
    assert kept.allowed(p2, d1, 0.0)
    assert kept.reason(p1, d2) is None
    assert all(w.engine.breaker.allows(0.0) for w in (p1, d1))


def test_ranks_are_parted_one_by_one() -> None:
    p = worker("http://p", "prefill")
    first, second = worker("http://d", "decode", 0), worker("http://d", "decode", 1)
    kept = pairs()
    for _ in range(PAIR_POLICY.failures):
        kept.failed(p, first, 0.0)
    assert not kept.allowed(p, first, 0.0)
    assert kept.allowed(p, second, 0.0)


def test_pair_is_tried_again_by_one_turn_and_used_again_after_success() -> None:
    p, d, kept = worker("http://p", "prefill"), worker("http://d", "decode"), pairs()
    for _ in range(PAIR_POLICY.failures):
        kept.failed(p, d, 0.0)
    later = PAIR_POLICY.pause
    assert kept.retry_at(p, d, 0.0) == later
    assert list(kept.states(later)) == [("http://p", "http://d", BreakerState.HALF_OPEN)]
    assert kept.allowed(p, d, later)
    kept.claim(p, d, later)
    assert not kept.allowed(p, d, later)
    kept.succeeded(p, d)
    assert kept.allowed(p, d, later)
    assert list(kept.states(later)) == []


def test_new_life_of_a_worker_is_a_new_pair() -> None:
    p, d, other, kept = (
        worker("http://p", "prefill"),
        worker("http://d", "decode"),
        worker("http://e", "decode"),
        pairs(),
    )
    for _ in range(PAIR_POLICY.failures):
        kept.failed(p, d, 0.0)
        kept.failed(p, other, 0.0)
    kept.forget(d)
    assert kept.allowed(p, d, 0.0)
    assert not kept.allowed(p, other, 0.0)


def test_incompatible_pairs_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    p, d, e = (
        worker("http://p", "prefill"),
        worker("http://d", "decode", vllm="0.31.0"),
        worker("http://e", "decode"),
    )
    kept = pairs()
    assert kept.incompatible([p.engine, d.engine, e.engine]) == 1
    for _ in range(3):
        kept.allowed(p, d, 0.0)
    told = [record for record in caplog.records if record.message == "pair.incompatible"]
    assert len(told) == 1
    assert "vLLM" in told[0].__dict__["reason"]
