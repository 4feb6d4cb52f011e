"""Memory pressure on decode engines: kept KV goes before requests have to wait."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from antiphon_server.router.fleet.worker import Pressure
from antiphon_server.router.keep.pressure import excess, read

Message = dict[str, Any]

VLLM = b"""# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:num_requests_waiting{engine="1",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 4.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:kv_cache_usage_percentile{engine="1"} 0.99
"""


def test_reading_is_of_the_fullest_rank() -> None:
    assert read(VLLM, None, 7.0) == Pressure(0.75, 3, 7.0)


@pytest.mark.parametrize(("rank", "usage", "waiting"), [(0, 0.25, 1), (1, 0.75, 2)])
def test_reading_is_of_the_workers_own_rank(rank: int, usage: float, waiting: int) -> None:
    assert read(VLLM, rank, 7.0) == Pressure(usage, waiting, 7.0)


def test_older_engines_do_not_say_why_requests_wait() -> None:
    body = b"vllm:kv_cache_usage_perc 0.5\nvllm:num_requests_waiting 3.0"
    assert read(body, None, 0.0) == Pressure(0.5, 3, 0.0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"vllm:num_requests_waiting 1.0\n",
        b"vllm:kv_cache_usage_perc what\n",
        b"x vllm:kv_cache_usage_perc",
    ],
)
def test_no_reading_without_the_metric(body: bytes) -> None:
    assert read(body, None, 0.0) is None


@pytest.mark.parametrize(
    ("usage", "waiting", "before", "share"),
    [
        (0.85, 0, 0, 0.0),
        (0.95, 0, 0, 0.15),
        (0.85, 2, 0, 0.05),
        (0.5, 2, 0, 0.0),
        (0.5, 2, 2, 0.1),
        (0.5, 0, 2, 0.0),
    ],
    ids=["fits", "full", "queue", "queue passes", "queue stays", "queue passed"],
)
def test_what_is_given_up(usage: float, waiting: int, before: int, share: float) -> None:
    now, earlier = Pressure(usage, waiting, 2.0), Pressure(usage, before, 0.0)
    assert excess(now, earlier, high=0.9, low=0.8) == pytest.approx(share)


async def _fill(rig: Any, opening: list[Message], count: int) -> list[Any]:
    return [await rig.ask(opening, conversation=f"c{n}") for n in range(count)]


async def test_usage_above_high_gives_up_the_least_valuable_down_to_low(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(
        decode={"capacity": 100, "prefix_caching": False},
        router={"keep_share": 1.0, "pressure_interval": 0, "pressure_high": 0.5, "pressure_low": 0.3},
    )
    await _fill(rig, opening, 2)
    each = rig.decode[0].pinned_blocks // 2
    await _fill(rig, opening, 60 // each)
    assert rig.decode[0].pinned_blocks > 50
    await rig.state.pressure.look()
    assert 30 - each <= rig.decode[0].pinned_blocks <= 30
    kept = {frontier.key.conversation for frontier in await rig.state.store.held()}
    last = 60 // each
    assert kept == {f"c{n}" for n in range(last - len(kept), last)}
    assert rig.count("antiphon_evictions_total", cause="pressure") == last - len(kept)
    await rig.state.pressure.look()
    assert rig.state.workers.decode[0].pressure.usage <= 0.3
    assert len(await rig.state.store.held()) == len(kept)


async def test_nothing_is_given_up_while_there_is_room(start: Any, opening: list[Message]) -> None:
    rig = await start(decode={"capacity": 1000}, router={"pressure_interval": 0})
    await _fill(rig, opening, 3)
    await rig.state.pressure.look()
    reading = rig.state.workers.decode[0].pressure
    assert reading == Pressure(rig.decode[0].used_blocks / 1000, 0, rig.clock.time)
    assert len(await rig.state.store.held()) == 3
    await rig.client.get("/metrics")
    assert rig.count("antiphon_worker_kv_usage", worker=rig.state.workers.decode[0].name) == reading.usage


async def test_watch_looks_by_itself_before_requests_wait_for_leases_to_end(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    """The clock stands still, so no lease ends: only what is given up lets the turn begin."""
    rig = await start(
        decode={"capacity": 40, "prefix_caching": False},
        router={"keep_share": 1.0, "pressure_interval": 0.05},
    )
    for n in range(12):
        answer = await rig.ask(opening, conversation=f"c{n}", max_tokens=16)
        assert answer.status == 200
    assert rig.count("antiphon_evictions_total", cause="pressure") + rig.count(
        "antiphon_evictions_total", cause="value"
    )


async def test_engine_that_does_not_tell_is_left_alone_and_named_once(
    start: Any, fault: Any, caplog: pytest.LogCaptureFixture, opening: list[Message]
) -> None:
    rig = await start(router={"pressure_interval": 0})
    await _fill(rig, opening, 2)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            rig.decode[0].faults.add(fault(kind="status", path="/metrics", code=404))
            await rig.state.pressure.look()
    assert [record.message for record in caplog.records].count("pressure.unknown") == 1
    assert rig.state.workers.decode[0].pressure is None
    assert len(await rig.state.store.held()) == 2


async def test_engine_that_is_down_has_no_reading(start: Any, opening: list[Message]) -> None:
    rig = await start(router={"pressure_interval": 0})
    await rig.state.pressure.look()
    worker = rig.state.workers.decode[0]
    assert worker.pressure is not None
    await rig.kill(rig.decode[0])
    await rig.state.pressure.look()
    assert worker.pressure is None
