"""Append: straight to the decode engine that holds the conversation's KV; and what calibration measures."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.plan.calibration import Calibration
from antiphon_server.router.plan.rates import Work
from antiphon_server.router.turn.turn import Turns

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}
APPEND = {"router": {"paths": ["append"]}}


def pulls(rig: Any, engine: Any) -> int:
    """Legs whose handle names remote blocks."""
    return sum(
        bool((leg.get("kv_transfer_params") or {}).get("remote_block_ids")) for leg in rig.legs(engine)
    )


async def turns(rig: Any, opening: list[Message], count: int, **body: Any) -> list[Any]:
    """So many turns of a conversation."""
    history, answers = list(opening), []
    for _ in range(count):
        answers.append(await rig.ask(history, conversation="c", **body))
        history += [answers[-1].message, FOLLOW]
    return answers


@pytest.mark.parametrize("stream", [False, True])
async def test_short_turns_need_no_prefill(start: Any, opening: list[Message], stream: bool) -> None:
    rig = await start(**APPEND)
    first, *later = await turns(rig, opening, 4, stream=stream)
    assert (first.path, first.reason) == ("cold", "first")
    assert {(answer.path, answer.reason) for answer in later} == {("append", "short")}
    assert len(rig.legs(rig.prefill[0])) == 1
    block = rig.decode[0].settings.block_size
    for before, answer in zip([first, *later], later, strict=False):
        held = before.usage["total_tokens"]
        assert held - 2 * block <= answer.matched <= answer.usage["prompt_tokens"]


async def test_turn_log_says_what_each_turn_did(
    start: Any, opening: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="antiphon_server.router")
    rig = await start(router={"paths": ["append"], "turn_log": True})
    answers = await turns(rig, opening, 2)
    first, second = (vars(line) for line in caplog.records if line.getMessage() == "turn.served")
    assert (first["path"], first["reason"], first["matched"]) == ("cold", "first", 0)
    assert (second["path"], second["reason"]) == ("append", "short")
    assert second["tokens"] > second["matched"] > first["tokens"] - 16
    for line, answer in zip((first, second), answers, strict=True):
        # The last token of an answer has no KV.
        assert line["answer"] == answer.usage["completion_tokens"] - 1
    assert first["conversation"] == second["conversation"] != "c"
    assert first["turn"] != second["turn"]


async def test_superseded_lease_is_released(start: Any, settled: Any, opening: list[Message]) -> None:
    rig = await start(**APPEND)
    await turns(rig, opening, 4)
    await settled(lambda: len(rig.decode[0].pinned) == 1)
    await rig.client.delete("/v1/conversations/c")
    await settled(lambda: not rig.decode[0].pinned)


async def test_prompt_that_prefill_computed_last_is_remembered(start: Any, opening: list[Message]) -> None:
    rig = await start(**APPEND)
    key = Key("", "simulated", "", "c")
    first, *appended = await turns(rig, opening, 3)
    assert {turn.path for turn in appended} == {"append"}
    assert rig.state.placement.of(key).filled == first.usage["prompt_tokens"]


async def test_rewritten_history_goes_through_prefill(start: Any, opening: list[Message]) -> None:
    rig = await start(router={"paths": ["append", "reuse"]})
    first = await rig.ask(opening, conversation="c")
    changed = [{**opening[0], "content": opening[0]["content"] + "!"}, opening[1], first.message, FOLLOW]
    second = await rig.ask(changed, conversation="c")
    assert second.path == "reuse" or second.reason == "mismatch"
    assert rig.count("antiphon_append_declined_total", reason="rewritten") == 1
    assert pulls(rig, rig.prefill[0]) <= 1


async def test_decode_without_a_prefix_cache_gets_no_appends(start: Any, opening: list[Message]) -> None:
    rig = await start(decode={"prefix_caching": False}, **APPEND)
    _, second = await turns(rig, opening, 2)
    assert (second.path, second.reason) == ("cold", "unsupported")


async def test_all_prefill_down_goes_on_from_what_decode_holds(start: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    await rig.kill(rig.prefill[0])
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    third = await rig.ask([*opening, first.message, FOLLOW, second.message, FOLLOW], conversation="c")
    assert (second.path, second.reason) in {("cold", "unhealthy"), ("append", "unhealthy")}
    assert (third.path, third.reason) == ("append", "unhealthy")


async def test_failed_append_is_tried_again_from_prefill_on(
    start: Any, fault: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(**APPEND)
    first = await rig.ask(opening, conversation="c")
    rig.decode[0].faults.add(fault(kind="status", code=500))
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert (second.path, second.reason) == ("cold", "failed")
    await settled(lambda: len(rig.decode[0].pinned) == 1)


async def test_decode_engine_that_dies_is_left_and_the_turn_served(
    start: Any, opening: list[Message]
) -> None:
    rig = await start(decodes=2, **APPEND)
    first = await rig.ask(opening, conversation="c")
    (holder,) = [engine for engine in rig.decode if rig.legs(engine)]
    await rig.kill(holder)
    second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert second.path == "cold"


async def test_calibration_measures_every_path_and_leaves_nothing(
    start: Any, settled: Any, opening: list[Message], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "antiphon_server.router")
    rig = await start(prefills=2, decodes=2, router={"paths": ["cold", "reuse", "append"]})
    calibration = Calibration(rig.state, Turns(rig.state))
    running = asyncio.create_task(calibration.run())
    rates = rig.state.rates
    workers = rig.state.workers

    def done() -> bool:
        return [record.message for record in caplog.records].count("calibration.done") == 2

    await settled(done)
    work = Work(100, 200)
    assert all(rates.prefill(w.name, work) for w in workers.prefill)
    assert all(rates.append(w.name, work) and rates.handed_over(w.name, work) for w in workers.decode)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await settled(lambda: not any(engine.pinned for engine in [*rig.prefill, *rig.decode]))
    assert rig.count("antiphon_turns_total", path="cold", reason="first") == 0
    for event in ("captured", "burned"):
        assert rig.count("antiphon_handles_total", event=event) == 0
    answer = await rig.ask(opening, conversation="c")
    assert answer.reason == "first"


async def test_calibration_pulls_whole_prompts_though_prefill_caches_them(start: Any) -> None:
    rig = await start(prefill={"prefix_caching": True}, router={"paths": ["cold", "reuse", "append"]})
    prefill, decode = rig.state.workers.prefill[0], rig.state.workers.decode[0]
    await Calibration(rig.state, Turns(rig.state), limit=0.0).measure(prefill, decode)
    counted = rig.prefill[0].counters
    assert counted.pulled > 200
    assert counted.computed > 200
