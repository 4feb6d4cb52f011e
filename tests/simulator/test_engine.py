"""The rules of KV between two simulated engines, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.protocol import (
    HANDLE_KEY,
    Handle,
    LeaseRequest,
    Match,
    Renewal,
    Seal,
    seal_of,
    sealed,
    unpack_chain,
)
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, recomputed
from antiphon_server.simulator.answer import Part, Slot
from antiphon_server.simulator.job import EngineDiedError, Job, KvLoadError, Output
from doubles.clock import Clock

COLD: Handle = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
APPEND: Handle = {"do_remote_decode": False, "do_remote_prefill": False}
SCRIPT = [Slot(Part.CONTENT)] * 12
BLOCK = 4


def pair(clock: Clock | None = None, **changed: Any) -> tuple[SimulatedEngine, SimulatedEngine]:
    """A prefill and a decode engine of one cluster."""
    base: dict[str, Any] = {"block_size": BLOCK, "capacity": 64, "threshold": 0, **changed}
    cluster, clock = SimulatedCluster(), clock or Clock(100.0)
    prefill = SimulatedEngine(Settings(role="prefill", **base), clock=clock, cluster=cluster)
    return prefill, SimulatedEngine(Settings(role="decode", **base), clock=clock, cluster=cluster)


def stock(clock: Clock | None = None, **changed: Any) -> tuple[SimulatedEngine, SimulatedEngine]:
    return pair(clock, antiphon=False, **changed)


async def run(
    engine: SimulatedEngine,
    prompt: Sequence[int],
    handle: Handle | None = None,
    *,
    limit: int = len(SCRIPT),
    salt: str | None = None,
) -> list[Output]:
    job = Job(f"request-{len(engine.pinned)}-{id(object())}", prompt, SCRIPT, limit, salt, handle=handle)
    async with aclosing(engine.generate(job)) as outputs:
        return [output async for output in outputs]


def ids(outputs: Sequence[Output]) -> list[int]:
    return [output.token for output in outputs]


def handle_of(outputs: Sequence[Output]) -> Handle:
    handle = outputs[-1].handle
    assert handle is not None
    return handle


def seal(handle: Handle) -> Seal:
    found = seal_of(handle)
    assert found is not None
    return found


async def turn(
    engines: tuple[SimulatedEngine, SimulatedEngine], prompt: Sequence[int], reuse: Handle | None = None
) -> tuple[list[int], Handle, Handle]:
    """Both legs of a turn: the answer's ids, decode's handle and prefill's handle."""
    prefill, decode = engines
    asked = {**reuse, "do_remote_decode": True, "do_remote_prefill": False} if reuse else COLD
    leg = handle_of(await run(prefill, prompt, asked, limit=1))
    outputs = await run(decode, prompt, leg)
    return ids(outputs), handle_of(outputs), leg


def truth(engine: SimulatedEngine, prompt: Sequence[int], limit: int = len(SCRIPT)) -> list[int]:
    return recomputed(engine.settings, prompt, SCRIPT, limit)


FIRST = list(range(1, 23))
OTHER = [99, *range(2, 23)]


async def test_a_turn_over_two_engines_answers_as_one_engine_does() -> None:
    engines = pair()
    answer, _, _ = await turn(engines, FIRST)
    assert answer == truth(engines[1], FIRST)
    assert ids(await run(pair()[1], FIRST)) == answer


async def test_the_next_turn_pulls_what_decode_holds_and_computes_the_rest() -> None:
    engines = pair(prefix_caching=False)
    answer, handle, _ = await turn(engines, FIRST)
    prompt = [*FIRST, *answer, 50, 51, 52]
    again, _, leg = await turn(engines, prompt, handle)
    held = (len(FIRST) + len(answer) - 1) // BLOCK * BLOCK
    assert again == truth(engines[0], prompt)
    assert (seal(leg).match, seal(leg).pulled, seal(leg).matched) == (Match.FULL, held, held)
    assert engines[0].counters.pulled == held
    assert engines[0].counters.computed == len(FIRST) + len(prompt) - held
    assert leg["remote_prefill_cached_tokens"] == held


async def test_foreign_kv_changes_the_answer_of_a_stock_engine_and_poisons_both_caches() -> None:
    engines = stock()
    _, handle, _ = await turn(engines, FIRST)
    prompt = [*OTHER, *range(30, 60)]
    answer, _, _ = await turn(engines, prompt, handle)
    assert answer != truth(engines[0], prompt)
    # Later requests that carry no handle meet the wrong blocks under the right hash, on both engines.
    assert ids(await run(engines[0], prompt)) != truth(engines[0], prompt)
    assert ids(await run(engines[1], prompt)) != truth(engines[1], prompt)
    assert ids(await run(engines[1], prompt, salt="fresh")) == truth(engines[1], prompt)


async def test_the_check_refuses_foreign_kv_and_frees_it() -> None:
    engines = pair()
    _, handle, _ = await turn(engines, FIRST)
    prompt = [*OTHER, *range(30, 60)]
    answer, _, leg = await turn(engines, prompt, handle)
    assert answer == truth(engines[0], prompt)
    assert (seal(leg).match, seal(leg).pulled) == (Match.MISMATCH, 0)
    assert handle["remote_request_id"] not in engines[1].pinned
    assert ids(await run(engines[0], prompt)) == truth(engines[0], prompt)
    assert ids(await run(engines[1], prompt)) == truth(engines[1], prompt)


async def test_the_check_cuts_where_the_histories_part() -> None:
    engines = pair(prefix_caching=False)
    _, handle, _ = await turn(engines, FIRST)
    prompt = [*FIRST[:14], *range(70, 90)]
    answer, _, leg = await turn(engines, prompt, handle)
    assert answer == truth(engines[0], prompt)
    assert (seal(leg).match, seal(leg).pulled) == (Match.CUT, 12)


async def test_a_prompt_shorter_than_what_decode_holds_is_exact_only_with_the_check() -> None:
    for engines, exact in ((pair(prefix_caching=False), True), (stock(prefix_caching=False), False)):
        answer, handle, _ = await turn(engines, FIRST)
        # Stock pairs the last blocks of both lists, which are not the same blocks.
        short, _, _ = await turn(engines, FIRST[:16], handle)
        assert (short == truth(engines[0], FIRST[:16])) is exact
        assert len(answer) == len(SCRIPT)


async def test_one_token_is_computed_when_the_whole_prompt_is_there() -> None:
    engines = pair(prefix_caching=False)
    _, handle, _ = await turn(engines, FIRST)
    answer, _, leg = await turn(engines, FIRST[:20], handle)
    assert answer == truth(engines[0], FIRST[:20])
    assert (seal(leg).match, seal(leg).matched) == (Match.CUT, 19)


async def test_another_salt_has_nothing_in_common() -> None:
    engines = pair()
    _, handle, _ = await turn(engines, FIRST)
    asked = {**handle, "do_remote_decode": True, "do_remote_prefill": False}
    outputs = await run(engines[0], [*FIRST, 70], asked, limit=1, salt="other")
    assert seal(handle_of(outputs)).match is Match.MISMATCH
    assert outputs[-1].cached == 0


async def test_a_handle_is_good_for_one_use() -> None:
    engines = pair(prefix_caching=False, capacity=24)
    answer, handle, _ = await turn(engines, FIRST)
    prompt = [*FIRST, *answer, 50]
    await turn(engines, prompt, handle)
    for filler in range(4):
        await run(engines[1], [200 + filler] * 20)
    # The chain still belongs to the prompt, the blocks do not: no check at prefill can know.
    again, _, leg = await turn(engines, prompt, handle)
    assert seal(leg).match is Match.FULL
    assert again != truth(engines[0], prompt)


@pytest.mark.parametrize("antiphon", [True, False])
async def test_an_expired_handle_fails_the_request_with_the_policy_fail(antiphon: bool) -> None:
    clock = Clock(100.0)
    engines = pair(clock, antiphon=antiphon, decode_lease=60.0)
    answer, handle, _ = await turn(engines, FIRST)
    engines[0].restart()
    clock.time += 55.0
    with pytest.raises(KvLoadError):
        await turn(engines, [*FIRST, *answer, 50], handle)
    assert engines[0].counters.declined == 1
    assert engines[0].used_blocks == 0


async def test_a_handle_is_read_until_five_seconds_before_its_deadline() -> None:
    clock = Clock(100.0)
    engines = pair(clock, decode_lease=60.0)
    answer, handle, _ = await turn(engines, FIRST)
    engines[0].restart()
    clock.time += 54.9
    _, _, leg = await turn(engines, [*FIRST, *answer, 50], handle)
    assert seal(leg).match is Match.FULL


@pytest.mark.parametrize("antiphon", [True, False])
async def test_a_read_that_outlasts_its_lease_is_not_trusted(antiphon: bool) -> None:
    clock = Clock(100.0)
    own: dict[str, Any] = {"kv_load_failure_policy": "recompute", "prefix_caching": False, "capacity": 16}
    prefill, decode = engines = pair(clock, antiphon=antiphon, transfer_rate=200.0, decode_lease=60.0, **own)
    answer, handle, _ = await turn(engines, FIRST)
    prompt = [*FIRST, *answer, 50]
    clock.time += 50.0  # soon enough to begin
    reading = asyncio.create_task(turn(engines, prompt, handle))
    while not prefill.running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    clock.time += 20.0
    for filler in range(4):  # the blocks are somebody else's before the read ends
        await run(decode, [200 + filler] * 20)
    again, _, leg = await reading
    assert (again == truth(prefill, prompt)) is antiphon
    if antiphon:
        assert seal(leg).match is Match.FAILED


async def test_an_expired_handle_with_the_policy_recompute_recovers_with_antiphon() -> None:
    clock = Clock(100.0)
    engines = pair(clock, kv_load_failure_policy="recompute", prefix_caching=False)
    answer, handle, _ = await turn(engines, FIRST)
    clock.time += 60.0
    prompt = [*FIRST, *answer, 50]
    again, _, leg = await turn(engines, prompt, handle)
    assert again == truth(engines[0], prompt)
    assert seal(leg).match is Match.FAILED


async def test_an_expired_handle_with_the_policy_recompute_hangs_a_stock_engine_until_it_is_aborted() -> None:
    clock = Clock(100.0)
    engines = stock(clock, kv_load_failure_policy="recompute", prefix_caching=False)
    _, handle, _ = await turn(engines, FIRST)
    clock.time += 60.0
    hung = asyncio.create_task(turn(engines, [*FIRST, 50], handle))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not hung.done()
    assert engines[0].running == 1
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung
    assert engines[0].used_blocks == 0


async def test_a_lease_is_renewed_on_the_engines_own_clock_and_released() -> None:
    clock = Clock(100.0)
    _, decode = engines = pair(clock, decode_lease=10.0, longest_lease=100.0)
    _, handle, _ = await turn(engines, FIRST)
    request_id = handle["remote_request_id"]
    reply = decode.lease(LeaseRequest(renew=[Renewal(request_id, 50.0), Renewal("nobody", 1.0)]))
    assert reply.leases == {request_id: decode.now() + 50.0, "nobody": "unknown"}
    assert reply.pinned == 1
    assert (
        decode.lease(LeaseRequest(renew=[Renewal(request_id, 1e9)])).leases[request_id]
        == decode.now() + 100.0
    )
    clock.time += 99.0
    assert decode.pinned == [request_id]
    reply = decode.lease(LeaseRequest(release=[request_id]))
    assert (reply.leases, reply.pinned) == ({request_id: decode.now()}, 0)
    assert (decode.pinned_blocks, decode.used_blocks) == (0, 0)


async def test_a_lease_that_nobody_renews_ends_by_itself() -> None:
    clock = Clock(100.0)
    _, decode = engines = pair(clock, decode_lease=10.0)
    await turn(engines, FIRST)
    assert decode.pinned_blocks == -(-(len(FIRST) + len(SCRIPT) - 1) // BLOCK)
    clock.time += 10.0
    assert (decode.pinned_blocks, decode.expired) == (0, 1)


async def test_prefill_is_freed_when_decode_has_read() -> None:
    prefill, decode = pair()
    leg = handle_of(await run(prefill, FIRST, COLD, limit=1))
    assert prefill.pinned == [leg["remote_request_id"]]
    await run(decode, FIRST, leg)
    assert prefill.pinned_blocks == 0


async def test_decode_turns_down_kv_of_another_prompt() -> None:
    prefill, decode = pair()
    leg = handle_of(await run(prefill, FIRST, COLD, limit=1))
    assert ids(await run(decode, OTHER, leg)) == truth(decode, OTHER)
    assert (decode.counters.pulled, prefill.pinned_blocks) == (0, 0)


async def test_an_append_straight_to_decode_uses_its_own_cache_and_returns_a_handle() -> None:
    engines = pair()
    answer, _, _ = await turn(engines, FIRST)
    prompt = [*FIRST, *answer, 50]
    outputs = await run(engines[1], prompt, APPEND)
    assert ids(outputs) == truth(engines[1], prompt)
    assert outputs[-1].cached == (len(FIRST) + len(answer) - 1) // BLOCK * BLOCK
    assert handle_of(outputs)["do_remote_decode"] is True


async def test_a_request_without_params_pins_nothing_and_returns_no_handle() -> None:
    _, decode = pair()
    assert (await run(decode, FIRST))[-1].handle is None
    assert decode.used_blocks == 0


async def test_an_aborted_request_frees_at_once_and_returns_nothing() -> None:
    _, decode = pair()
    generation = decode.generate(Job("gone", FIRST, SCRIPT, len(SCRIPT), handle=APPEND))
    await anext(generation)
    assert decode.used_blocks > 0
    await generation.aclose()
    assert (decode.used_blocks, decode.pinned, decode.counters.aborted) == (0, [], 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({HANDLE_KEY: None}, Match.UNSEALED),
        ({HANDLE_KEY: {"seed": "another"}}, Match.FOREIGN),
        ({HANDLE_KEY: {"block_size": 8}}, Match.FOREIGN),
    ],
)
async def test_a_handle_that_cannot_be_checked_is_not_used(change: dict[str, Any], match: Match) -> None:
    engines = pair(prefix_caching=False)
    _, handle, _ = await turn(engines, FIRST)
    part = change[HANDLE_KEY]
    if part is None:
        del handle[HANDLE_KEY]
    else:
        handle = sealed(handle, msgspec.structs.replace(seal(handle), **part))
    _, _, leg = await turn(engines, [*FIRST, 50], handle)
    assert (seal(leg).match, engines[0].counters.pulled) == (match, 0)


async def test_short_pulls_and_local_hits_are_named() -> None:
    engines = pair(threshold=64)
    answer, handle, _ = await turn(engines, FIRST)
    _, _, leg = await turn(engines, [*FIRST, *answer, 50], handle)
    assert seal(leg).match is Match.THRESHOLD
    _, handle, _ = await turn(engines, FIRST)
    _, _, leg = await turn(engines, [*FIRST[:20], 50, 51, 52, 53], handle)
    assert seal(leg).match is Match.LOCAL
    assert engines[0].counters.pulled == 0
    # Sent is consumed, also when nothing was pulled.
    assert handle["remote_request_id"] not in engines[1].pinned


async def test_an_engine_without_the_reuse_flag_declines_with_antiphon_and_hangs_without() -> None:
    _, decode = engines = pair(prefix_caching=False)
    _, handle, _ = await turn(engines, FIRST)
    clock, asked = Clock(100.0), {**handle, "do_remote_decode": True, "do_remote_prefill": False}
    base: dict[str, Any] = {"block_size": BLOCK, "threshold": 0, "reuse": False}
    ours = SimulatedEngine(Settings(**base), clock, decode.cluster)
    assert seal(handle_of(await run(ours, [*FIRST, 50], asked, limit=1))).match is Match.UNSUPPORTED
    plain = SimulatedEngine(Settings(antiphon=False, **base), clock, decode.cluster)
    hung = asyncio.create_task(run(plain, [*FIRST, 50], asked, limit=1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not hung.done()
    plain.restart()
    with pytest.raises(EngineDiedError):
        await hung


async def test_a_restarted_engine_is_another_engine() -> None:
    _, decode = engines = pair(kv_load_failure_policy="recompute", prefix_caching=False)
    _, handle, _ = await turn(engines, FIRST)
    before = decode.engine_id, decode.epoch
    decode.restart()
    assert decode.engine_id != before[0]
    assert decode.epoch != before[1]
    assert (decode.pinned_blocks, decode.used_blocks) == (0, 0)
    answer, _, leg = await turn(engines, [*FIRST, 50], handle)
    assert seal(leg).match is Match.FAILED
    assert answer == truth(decode, [*FIRST, 50])


async def test_a_request_waits_until_a_lease_frees_the_blocks_it_needs() -> None:
    _, decode = engines = pair(capacity=12)
    _, handle, _ = await turn(engines, FIRST)
    waiting = asyncio.create_task(run(decode, OTHER))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (decode.waiting, waiting.done()) == (1, False)
    decode.lease(LeaseRequest(release=[handle["remote_request_id"]]))
    assert ids(await waiting) == truth(decode, OTHER)


async def test_the_chain_covers_full_blocks_of_prompt_and_answer() -> None:
    engines = pair()
    _, handle, leg = await turn(engines, FIRST)
    held = len(FIRST) + len(SCRIPT) - 1
    assert (seal(handle).tokens, handle["remote_num_tokens"]) == (held, held)
    assert len(unpack_chain(seal(handle).chain)) == held // BLOCK
    assert len(handle["remote_block_ids"][0]) == -(-held // BLOCK)
    assert unpack_chain(seal(leg).chain) == unpack_chain(seal(handle).chain)[: len(FIRST) // BLOCK]
    assert seal(handle).tail is None
    assert seal(leg).tail is not None


histories = st.lists(st.integers(0, 3), min_size=1, max_size=40)


async def _second_turn(
    engines: tuple[SimulatedEngine, SimulatedEngine],
    first: list[int],
    kept: int,
    rest: list[int],
    answered: bool,
) -> tuple[list[int], list[int]]:
    """The answer of a turn that reuses another one, and what it should be."""
    answer, handle, _ = await turn(engines, first)
    history = [*first, *answer] if answered else first
    prompt = [*history[:kept], *rest]
    again, _, _ = await turn(engines, prompt, handle)
    later = ids(await run(engines[0], prompt)), ids(await run(engines[1], prompt))
    right = truth(engines[0], prompt)
    return [*again, *later[0], *later[1]], [*right, *right, *right]


@given(first=histories, kept=st.integers(0, 60), rest=histories, answered=st.booleans(), cached=st.booleans())
def test_with_the_check_any_reuse_answers_as_full_recomputation(
    first: list[int], kept: int, rest: list[int], answered: bool, cached: bool
) -> None:
    engines = pair(prefix_caching=cached)
    got, right = asyncio.run(_second_turn(engines, first, kept, rest, answered))
    assert got == right


@settings(deadline=None, derandomize=True)
@given(
    common=histories,
    parted=st.lists(st.integers(4, 6), min_size=BLOCK, max_size=20),
    rest=st.lists(st.integers(7, 9), min_size=2 * BLOCK, max_size=20),
    checked=st.booleans(),
)
def test_without_the_check_diverging_histories_answer_wrongly(
    common: list[int], parted: list[int], rest: list[int], checked: bool
) -> None:
    engines = pair(prefix_caching=False, check=checked)
    got, right = asyncio.run(_second_turn(engines, [*common, *parted], len(common), rest, answered=False))
    assert (got == right) is checked
