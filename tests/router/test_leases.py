"""What is kept, renewed, displaced and released."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from antiphon_server.router.keep.returns import Returns
from antiphon_server.router.turn.reply import Reply
from antiphon_server.simulator.leases import Leases

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}


@pytest.mark.parametrize("stream", [False, True])
async def test_closed_conversation_leaves_nothing_pinned(
    start: Any, settled: Any, opening: list[Message], stream: bool
) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c", stream=stream)
    await rig.ask([*opening, first.message, FOLLOW], conversation="c", stream=stream)
    assert len(rig.decode[0].pinned) == 1
    assert (await rig.client.delete("/v1/conversations/c")).status_code == 204
    await settled(lambda: rig.decode[0].pinned_blocks == rig.prefill[0].pinned_blocks == 0)
    assert (await rig.client.delete("/v1/conversations/c")).status_code == 404


async def test_close_ends_every_model_and_salt_of_one_tenant_only(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    mine, theirs = {"Authorization": "Bearer mine"}, {"Authorization": "Bearer theirs"}
    await rig.ask(opening, conversation="c", headers=mine)
    await rig.ask(opening, conversation="c", headers=mine, cache_salt="s")
    await rig.ask(opening, conversation="c", headers=theirs)
    assert (await rig.client.get("/v1/conversations/c", headers={})).status_code == 404
    assert (await rig.client.delete("/v1/conversations/c", headers=mine)).status_code == 204
    await settled(lambda: len(rig.decode[0].pinned) == 1)
    assert (await rig.client.get("/v1/conversations/c", headers=theirs)).status_code == 200


async def test_turn_that_ends_after_the_close_keeps_nothing(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 100.0})
    turn = asyncio.create_task(rig.ask(opening, conversation="c"))
    await settled(lambda: rig.decode[0].running)
    assert (await rig.client.delete("/v1/conversations/c")).status_code == 204
    await turn
    await settled(lambda: rig.decode[0].pinned_blocks == 0)
    assert await rig.state.store.held() == []


async def test_final_turn_keeps_nothing(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    last = await rig.ask(
        [*opening, first.message, FOLLOW], conversation="c", headers={"X-Session-Final": "true"}
    )
    assert last.path == "reuse"
    await settled(lambda: rig.decode[0].pinned_blocks == 0)
    assert (await rig.client.get("/v1/conversations/c")).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_turn_without_conversation_keeps_nothing(
    start: Any, settled: Any, opening: list[Message], stream: bool
) -> None:
    rig = await start()
    answer = await rig.ask(opening, stream=stream)
    assert (answer.path, answer.reason) == ("cold", "anonymous")
    await settled(lambda: rig.decode[0].pinned_blocks == rig.prefill[0].pinned_blocks == 0)


async def test_superseded_lease_is_released_when_nothing_was_pulled(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    await rig.ask(opening, conversation="c")
    other = await rig.ask([{"role": "user", "content": "something else altogether"}], conversation="c")
    assert other.reason == "mismatch"
    await settled(lambda: len(rig.decode[0].pinned) == 1)
    await settled(lambda: rig.count("antiphon_leases_total", event="released") == 1)


async def test_resting_conversations_leave_a_decode_engine_room_to_serve(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    """Without a bound the engine fills with KV nobody uses, and a new request waits for leases to end."""
    rig = await start(decode={"capacity": 40, "prefix_caching": False})
    first = [await rig.ask(opening, conversation=f"c{n}") for n in range(12)]
    half = rig.decode[0].settings.capacity // 2
    await settled(lambda: 0 < rig.decode[0].pinned_blocks <= half)
    kept = {frontier.key.conversation for frontier in await rig.state.store.held()}
    assert kept
    assert kept == {f"c{n}" for n in range(12 - len(kept), 12)}
    newest = await rig.ask([*opening, first[11].message, FOLLOW], conversation="c11")
    assert newest.path == "reuse"
    again = await rig.ask([*opening, first[0].message, FOLLOW], conversation="c0")
    assert (again.path, again.reason) == ("cold", "lost")


async def test_pinned_tokens_stay_within_the_budget_at_every_instant(
    start: Any, settled: Any, monkeypatch: pytest.MonkeyPatch, opening: list[Message]
) -> None:
    """In the engine's own books, whenever it pins: room is made before a turn ends, not after."""
    rig = await start(decode={"capacity": 160, "prefix_caching": False}, router={"pressure_interval": 0})
    engine, budget = rig.decode[0], 80
    grant, seen = Leases.grant, []

    def spy(leases: Leases, request_id: str, blocks: list[int], deadline: float) -> None:
        grant(leases, request_id, blocks, deadline)
        if leases is engine._leases:
            seen.append(leases.blocks)

    monkeypatch.setattr(Leases, "grant", spy)
    history = {f"c{n}": opening for n in range(9)}
    for _ in range(2):
        for names in (["c0", "c1", "c2"], ["c3", "c4", "c5"], ["c6", "c7", "c8"]):
            answers = await asyncio.gather(
                *(rig.ask(history[name], conversation=name, max_tokens=16) for name in names)
            )
            for name, answer in zip(names, answers, strict=True):
                history[name] = [*history[name], answer.message, FOLLOW]
    assert len(seen) == 18
    assert budget // 2 < max(seen) <= budget
    assert rig.count("antiphon_evictions_total", cause="value") > 0
    await settled(lambda: rig.decode[0].pinned_blocks <= budget)


@pytest.mark.parametrize("stream", [False, True])
async def test_turn_larger_than_the_budget_is_served_and_not_kept(
    start: Any, settled: Any, opening: list[Message], stream: bool
) -> None:
    rig = await start(decode={"capacity": 40}, router={"keep_share": 0.1, "pressure_interval": 0})
    await rig.ask(opening, conversation="c", stream=stream)
    await settled(lambda: rig.decode[0].pinned_blocks == 0)
    assert await rig.state.store.held() == []


async def test_least_recent_conversations_are_evicted_and_released(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(router={"conversations": 3})
    for index in range(7):
        await rig.ask(opening, conversation=f"c{index}")
    await settled(lambda: len(rig.decode[0].pinned) == 3)
    kept = [frontier.key.conversation for frontier in await rig.state.store.held()]
    assert kept == ["c4", "c5", "c6"]
    again = await rig.ask(opening, conversation="c0")
    assert again.path == "cold"


async def test_renewed_lease_outlives_the_engines_own(start: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    for _ in range(10):
        rig.clock.time += 30.0
        await rig.state.leases.renew()
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert (second.path, second.reason) == ("reuse", "full")


async def test_handle_carries_the_renewed_deadline(start: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    rig.clock.time += 30.0
    await rig.state.leases.renew()
    await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    sent = rig.legs(rig.prefill[0])[-1]["kv_transfer_params"]["remote_blocks_expiry_time"]
    assert sent == rig.decode[0].now() + 60.0


async def test_lease_that_ended_is_not_sent(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    rig.clock.time += 59.0
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert (second.path, second.reason) == ("cold", "expired")
    assert rig.legs(rig.prefill[0])[-1]["kv_transfer_params"]["remote_block_ids"] is None


async def test_idle_conversation_is_given_up(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start(decode={"decode_lease": 600.0}, router={"keep": 100.0})
    await rig.ask(opening, conversation="c")
    rig.clock.time += 99.0
    await rig.state.leases.renew()
    assert len(rig.decode[0].pinned) == 1
    rig.clock.time += 2.0
    await rig.state.leases.renew()
    await settled(lambda: rig.decode[0].pinned_blocks == 0)


async def test_lease_unknown_to_its_engine_is_forgotten(start: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    rig.decode[0].expire_leases()
    await rig.state.leases.renew()
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert (second.path, second.reason) == ("cold", "lost")


async def test_failed_release_is_sent_again(
    start: Any, settled: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start()
    await rig.ask(opening, conversation="c")
    rig.decode[0].faults.add(fault(kind="status", path="/antiphon/leases", code=500))
    await rig.client.delete("/v1/conversations/c")
    await settled(lambda: rig.decode[0].pinned_blocks == 0)


async def test_conversation_that_will_hardly_return_is_not_renewed(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(router={"least_chance": 0.5})
    await rig.ask(opening, conversation="c")
    rig.clock.time += 50.0
    await rig.state.leases.renew()
    assert rig.count("antiphon_leases_total", event="renewed") == 0
    assert len(rig.decode[0].pinned) == 1
    rig.clock.time += 11.0
    await rig.state.leases.renew()
    assert await rig.state.store.held() == []
    assert rig.count("antiphon_evictions_total", cause="chance") == 1


async def test_return_is_learnt_from_the_turns(start: Any, opening: list[Message]) -> None:
    rig = await start(router={"lease_margin": 0})
    for n in range(12):
        first = await rig.ask(opening, conversation=f"c{n}", max_tokens=4)
        rig.clock.time += 30.0
        await rig.ask([*opening, first.message, FOLLOW], conversation=f"c{n}", max_tokens=4)
    kept = await rig.state.store.held()
    stranger = dataclasses.replace(kept[0].key, conversation="stranger")
    before = Returns(1).chance(stranger, 25.0, 15.0, 0.0)
    assert rig.state.returns.chance(stranger, 25.0, 15.0, rig.clock.time) > 2 * before


async def test_lease_that_could_not_be_renewed_is_given_up(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start()
    await rig.ask(opening, conversation="c")
    rig.clock.time += 61.0
    await rig.state.leases.renew()
    assert await rig.state.store.held() == []
    assert rig.count("antiphon_evictions_total", cause="expired") == 1


async def test_release_that_keeps_failing_is_left_to_the_engines_clock(
    start: Any, settled: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start()
    await rig.ask(opening, conversation="c")
    for _ in range(4):
        rig.decode[0].faults.add(fault(kind="status", path="/antiphon/leases", code=500))
    await rig.client.delete("/v1/conversations/c")
    await settled(lambda: rig.count("antiphon_leases_total", event="failed") == 1)
    assert rig.decode[0].pinned_blocks > 0
    rig.clock.time += 60.0
    assert rig.decode[0].pinned_blocks == 0


async def test_leases_of_a_rank_are_asked_of_that_rank(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"data_parallel": 2})
    await rig.ask(opening, conversation="c")
    (kept,) = await rig.state.store.held()
    worker = rig.state.workers.find(kept.worker)
    await rig.state.leases.renew()
    await rig.client.delete("/v1/conversations/c")
    await settled(lambda: rig.decode[0].pinned_blocks == 0)
    calls = [r for r in rig.decode[0].requests if r.path == "/antiphon/leases"]
    assert len(calls) == 2
    assert {call.headers.get("x-data-parallel-rank") for call in calls} == {str(worker.rank)}


async def test_what_is_kept_shows_in_the_metrics(start: Any, opening: list[Message]) -> None:
    rig = await start(decode={"capacity": 400})
    await rig.ask(opening, conversation="c")
    (kept,) = await rig.state.store.held()
    text = (await rig.client.get("/metrics")).text
    assert f'antiphon_kept_tokens{{worker="{kept.worker}"}} {float(kept.tokens)}' in text
    assert f'antiphon_budget_tokens{{worker="{kept.worker}"}} {400 * 16 / 2}' in text
    assert f'antiphon_reserved_tokens{{worker="{kept.worker}"}} 0.0' in text


async def test_failed_renewal_keeps_the_frontier_until_its_deadline(
    start: Any, fault: Any, opening: list[Message]
) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    rig.decode[0].faults.add(fault(kind="status", path="/antiphon/leases", code=500))
    rig.clock.time += 20.0
    await rig.state.leases.renew()
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert second.path == "reuse"


async def test_renewal_does_not_bring_back_a_taken_frontier(start: Any, opening: list[Message]) -> None:
    rig = await start()
    await rig.ask(opening, conversation="c")
    (kept,) = await rig.state.store.held()
    renewing = asyncio.create_task(rig.state.leases.renew())
    await asyncio.sleep(0)
    assert await rig.state.store.take(kept.key) is not None
    await renewing
    assert await rig.state.store.held() == []


async def test_shutdown_releases_everything(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start()
    for index in range(5):
        await rig.ask(opening, conversation=f"c{index}")
    assert len(rig.decode[0].pinned) == 5
    await rig.state.stop()
    assert rig.decode[0].pinned_blocks == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_frontier_is_recorded_before_the_client_sees_the_end(
    start: Any, monkeypatch: pytest.MonkeyPatch, opening: list[Message], stream: bool
) -> None:
    rig = await start()
    write, kept_at_end = Reply.write, []

    async def spy(reply: Reply, data: bytes, *, last: bool = False) -> None:
        if b"[DONE]" in data or (last and not stream):
            kept_at_end.append(len(await rig.state.store.held()))
        await write(reply, data, last=last)

    monkeypatch.setattr(Reply, "write", spy)
    await rig.ask(opening, conversation="c", stream=stream)
    assert kept_at_end == [1]


async def test_captured_handles_are_counted(start: Any, opening: list[Message]) -> None:
    rig = await start()
    await rig.ask(opening, conversation="c", stream=True)
    await rig.ask(opening, conversation="c")
    assert rig.count("antiphon_handles_total", event="captured") == 2
    assert rig.count("antiphon_handles_total", event="missing") == 0


async def test_full_tables_refuse_nobody_and_stay_full(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    # https://github.com/ai-dynamo/dynamo/issues/14570
    bounds = {"conversations": 4, "tenant_conversations": 4, "known": 8, "responses": 2}
    rig = await start(router=bounds)
    for index in range(24):
        answer = await rig.ask(opening, conversation=f"made up {index} " * 50)
        assert answer.reason == "first"
    second = await rig.ask([*opening, answer.message, FOLLOW], conversation=f"made up {index} " * 50)
    assert second.path == "reuse"
    assert len(await rig.state.store.held()) == 4
    assert len(rig.state.placement._places) == 8
    await settled(lambda: len(rig.decode[0].pinned) == 4)
