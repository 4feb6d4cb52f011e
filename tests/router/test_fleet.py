"""Turns over a fleet that changes and fails, client to engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon_server.router.fleet.breaker import BreakerState
from antiphon_server.router.fleet.worker import RANK_HEADER

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "Go on with the next letters, please."}


def ranks(rig: Any, engine: Any) -> list[str | None]:
    return [r.headers.get(RANK_HEADER.lower()) for r in engine.requests if r.path.startswith("/v1/")]


async def turns(rig: Any, opening: list[Message], conversation: str, count: int = 2) -> list[Any]:
    history, answers = list(opening), []
    for _ in range(count):
        answer = await rig.ask(history, conversation=conversation)
        answers.append(answer)
        history += [answer.message, FOLLOW]
    return answers


def breakers(rig: Any, role: str) -> list[BreakerState]:
    return [listed.breaker for listed in rig.state.workers.list() if listed.role == role]


# --- ranks ---


async def test_legs_of_a_conversation_go_to_one_rank(start: Any, opening: list[Message]) -> None:
    rig = await start(prefill={"data_parallel": 2}, decode={"data_parallel": 4})
    for conversation in range(6):
        rig.prefill[0].requests.clear()
        rig.decode[0].requests.clear()
        answers = await turns(rig, opening, f"c{conversation}", 3)
        assert [answer.path for answer in answers][1:] != ["cold", "cold"]
        decode = ranks(rig, rig.decode[0])
        assert len(set(decode)) == 1
        assert decode[0] in {"0", "1", "2", "3"}
        assert set(ranks(rig, rig.prefill[0])) <= {"0", "1"}
    held = await rig.state.store.held()
    assert all(frontier.worker.startswith(rig.state.workers.decode[0].url + "#") for frontier in held)


async def test_lease_calls_go_to_the_rank_that_holds(start: Any, opening: list[Message]) -> None:
    rig = await start(decode={"data_parallel": 4})
    await rig.ask(opening, conversation="c")
    (held,) = await rig.state.store.held()
    rig.decode[0].requests.clear()
    assert (await rig.client.delete("/v1/conversations/c")).status_code == 204
    await rig.state.leases.flush()
    calls = [r for r in rig.decode[0].requests if r.path == "/antiphon/leases"]
    assert [r.headers[RANK_HEADER.lower()] for r in calls] == [held.worker.partition("#")[2]]
    assert rig.decode[0].pinned == []


async def test_engine_without_ranks_gets_no_rank(start: Any, opening: list[Message]) -> None:
    rig = await start()
    await turns(rig, opening, "c")
    assert {*ranks(rig, rig.prefill[0]), *ranks(rig, rig.decode[0])} == {None}


# --- joining and leaving ---


async def test_conversation_of_a_draining_engine_moves_and_takes_its_kv_along(
    start: Any, opening: list[Message]
) -> None:
    rig = await start(decodes=2, router={"paths": ["cold", "reuse"]})
    first = await rig.ask(opening, conversation="c")
    (held,) = await rig.state.store.held()
    rig.state.workers.drain("decode", held.worker)
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert second.path == "reuse"
    (moved,) = await rig.state.store.held()
    assert moved.worker != held.worker


async def test_removed_engine_is_let_go_of(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start(decodes=2)
    first = await rig.ask(opening, conversation="c")
    (held,) = await rig.state.store.held()
    home = rig.decode[[w.url for w in rig.state.workers.decode].index(held.worker)]
    assert len(home.pinned) == 1
    await rig.state.workers.remove("decode", held.worker)
    assert await rig.state.store.held() == []
    await settled(lambda: home.pinned == [])
    legs = len(rig.legs(home))
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert second.path == "cold"
    assert len(rig.legs(home)) == legs


async def test_engine_that_joins_serves(start: Any, opening: list[Message]) -> None:
    rig = await start(decodes=2)
    url = rig.state.workers.decode[0].url
    await rig.state.workers.remove("decode", url)
    await rig.state.workers.add("decode", url)
    rig.state.workers.drain("decode", next(w.url for w in rig.state.workers.decode if w.url != url))
    await rig.ask(opening)
    assert len(rig.legs(rig.decode[0])) == 1


# --- failing ---


async def test_engine_that_fails_its_legs_is_shut_out_though_it_looks_healthy(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start(decodes=2, router={"breaker_failures": 3})
    sick = rig.decode[0]
    sick.faults.add(fault(kind="status", code=500, times=1000))
    for index in range(60):
        await rig.ask(opening, conversation=f"c{index}")
        if breakers(rig, "decode")[0] is BreakerState.OPEN:
            break
    assert breakers(rig, "decode") == [BreakerState.OPEN, BreakerState.CLOSED]
    assert rig.state.workers.decode[0].healthy
    left = sick.faults._waiting[0].times
    for index in range(12):
        await rig.ask(opening, conversation=f"d{index}")
    assert sick.faults._waiting[0].times == left  # nothing was sent to it any more
    sick.faults.clear()
    rig.clock.time += 60
    for index in range(24):
        await rig.ask(opening, conversation=f"e{index}")
    assert breakers(rig, "decode") == [BreakerState.CLOSED, BreakerState.CLOSED]
    assert rig.legs(sick)


async def test_stream_that_begins_with_a_failure_counts_against_its_engine(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    failing = {"kv_load_failure_policy": "fail"}
    rig = await start(decode=failing, router={"breaker_failures": 2, "pair_failures": 2, "attempts": 1})
    for _ in range(2):
        rig.prefill[0].cluster.leave(rig.prefill[0].engine_id)  # its side channel is gone
        await rig.ask(opening, stream=True, check=False)
    assert breakers(rig, "decode") == [BreakerState.OPEN]
    (parted,) = rig.state.placement.pairs.states(rig.clock())
    assert parted[2] is BreakerState.OPEN


@pytest.mark.parametrize("code", [400, 404, 422, 429])
async def test_client_errors_and_overload_shut_nobody_out(
    start: Any, fault: Any, opening: list[Message], code: int
) -> None:
    # https://github.com/vllm-project/router/pull/148
    rig = await start(router={"breaker_failures": 1, "pair_failures": 1, "attempts": 1})
    for engine in (*rig.prefill, *rig.decode):
        engine.faults.add(fault(kind="status", code=code, times=3))
        for _ in range(3):
            assert (await rig.ask(opening, conversation="c", check=False)).status == code
    assert all(worker.available for worker in rig.state.workers)
    assert not list(rig.state.placement.pairs.states(rig.clock()))


async def test_last_engine_is_used_though_it_is_shut_out(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start(router={"breaker_failures": 1, "attempts": 1})
    rig.decode[0].faults.add(fault(kind="status", code=500))
    await rig.ask(opening, conversation="c", check=False)
    assert breakers(rig, "decode") == [BreakerState.OPEN]
    await rig.ask(opening, conversation="c")
    assert rig.count("antiphon_placements_total", role="decode", outcome="least_bad") == 1


async def test_engine_that_never_answers_holds_up_no_turn(
    start: Any, settled: Any, fault: Any, opening: list[Message]
) -> None:
    # https://github.com/vllm-project/production-stack/issues/749
    rig = await start(decodes=2, prefills=2, router={"probe_timeout": 0.2, "probe_interval": 0.05})
    for engine in (rig.prefill[0], rig.decode[0]):
        engine.faults.add(fault(kind="stall", path="/", times=10_000))
    workers = rig.state.workers
    await settled(lambda: not workers.prefill[0].healthy and not workers.decode[0].healthy)
    await asyncio.gather(*(rig.ask(opening, conversation=f"c{index}") for index in range(8)))
    for engine in (rig.prefill[0], rig.decode[0]):
        engine.faults.clear()
    await settled(lambda: all(worker.available for worker in workers))


async def test_engines_of_another_build_are_not_used_together(start: Any, opening: list[Message]) -> None:
    rig = await start(prefills=2)
    workers = rig.state.workers
    odd = workers.prefill[0]
    rig.prefill[0].settings = type(rig.prefill[0].settings)(role="prefill", block_size=32, threshold=0)
    rig.prefill[0].restart()
    await workers.probe(odd)
    assert "block size" in (rig.state.placement.pairs.reason(odd, workers.decode[0]) or "")
    for index in range(8):
        await rig.ask(opening, conversation=f"c{index}")
    assert rig.legs(rig.prefill[0]) == []
    assert len(rig.legs(rig.prefill[1])) == 8


# --- what operators see ---


async def test_metrics_tell_of_workers_breakers_and_placements(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start(decodes=2, decode={"data_parallel": 2})
    await turns(rig, opening, "c")
    workers, now = rig.state.workers, rig.clock()
    first = workers.decode[0]
    for _ in range(10):
        first.failed(now)
        rig.state.placement.pairs.failed(workers.prefill[0], first, now)
    workers.drain("decode", workers.decode[2].url)
    page = (await rig.client.get("/metrics")).text
    assert f'antiphon_worker_healthy{{role="decode",worker="{first.url}"}} 1.0' in page
    assert f'antiphon_worker_breaker{{role="decode",worker="{first.url}"}} 2.0' in page
    assert f'antiphon_worker_draining{{role="decode",worker="{workers.decode[2].url}"}} 1.0' in page
    assert f'antiphon_worker_load{{role="decode",worker="{first.name}"}} 0.0' in page
    pair = f'prefill="{workers.prefill[0].name}"'
    assert f'antiphon_pair_breaker{{decode="{first.name}",{pair}}} 2.0' in page
    assert "antiphon_pairs_incompatible 0.0" in page
    assert 'antiphon_placements_total{outcome="new",role="decode"} 1.0' in page
    assert 'antiphon_placements_total{outcome="sticky",role="decode"} 1.0' in page
    await workers.remove("decode", first.url)
    assert first.url not in (await rig.client.get("/metrics")).text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "trouble", [{"kind": "status", "code": 500}, {"kind": "cut", "chunks": 0}, {"kind": "stall"}]
)
async def test_failed_cold_leg_goes_to_another_prefill_engine(
    start: Any, fault: Any, opening: list[Message], trouble: dict[str, Any], stream: bool
) -> None:
    rig = await start(prefills=2, router={"prefill_timeout": 0.5})
    sick, well = rig.prefill
    sick.faults.add(fault(**trouble))
    for index in range(60):
        answer = await rig.ask(opening, conversation=f"c{index}", stream=stream)
        if not sick.faults:
            break
        assert answer.reason == "first"
    assert (answer.path, answer.reason) == ("cold", "failed")
    assert rig.legs(well)
    sick.faults.clear()


async def test_silent_prefill_ends_in_a_clear_error_before_decode_waits_for_it(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    # https://github.com/vllm-project/aibrix/issues/2289
    rig = await start(router={"prefill_timeout": 0.2, "attempts": 2})
    rig.prefill[0].faults.add(fault(kind="stall", times=2))
    failed = await rig.ask(opening, conversation="c", check=False)
    assert failed.status == 504
    assert "prefill" in failed.raw.decode()
    assert not rig.legs(rig.decode[0])
    rig.prefill[0].faults.clear()


async def test_restart_of_an_engine_with_ranks_drops_what_each_of_them_held(
    start: Any, opening: list[Message]
) -> None:
    # https://github.com/PrimeIntellect-ai/prime-rl/issues/2843: one rank that dies takes the others with it
    rig = await start(decode={"data_parallel": 4})
    for index in range(12):
        await rig.ask(opening, conversation=f"c{index}")
    assert len({frontier.worker for frontier in await rig.state.store.held()}) > 1
    rig.decode[0].restart()
    await rig.state.workers.probe(rig.state.workers.decode[0])
    assert await rig.state.store.held() == []


async def test_conversations_that_begin_alike_are_spread(start: Any, opening: list[Message]) -> None:
    # https://github.com/smg-project/smg/issues/1928: agents of one kind share their first message
    rig = await start(prefills=2, decodes=4)
    for index in range(24):
        await rig.ask(opening, conversation=f"c{index}")
    assert all(1 <= len(rig.legs(engine)) <= 12 for engine in rig.decode)
    assert all(rig.legs(engine) for engine in rig.prefill)
