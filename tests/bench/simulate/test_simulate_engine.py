"""Modelled engines: steps, memory, legs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from antiphon_server.bench.simulate.engine import Engine
from antiphon_server.bench.simulate.fleet import Fleet
from antiphon_server.bench.simulate.legs import Begun, Filled, decode, prefill
from antiphon_server.bench.simulate.loop import VirtualLoop
from antiphon_server.bench.simulate.memory import Memory, Talk
from antiphon_server.bench.simulate.rates import RateModel
from antiphon_server.bench.simulate.steps import Steps
from antiphon_server.protocol import Match

MODEL = RateModel("test", 0.5, 0.001, step=0.1, chunk=100, transfer=1.0, transfer_token=0.001, pull=2.0)
FLEET = Fleet(block=10, threshold=20)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())


def engine(name: str, *, tokens: int = 100_000, caches: bool = True, sequences: int = 8) -> Engine:
    return Engine(name, MODEL, FLEET, tokens=tokens, caches=caches, sequences=sequences)


class Clock:
    """When things happened, in seconds since the beginning."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.seen: dict[str, float] = {}

    def mark(self, name: str) -> Callable[[], None]:
        return lambda: self.seen.update({name: round(self.loop.time() - self.began, 6)})


def test_a_prompt_is_computed_in_chunks_and_slows_streams_down() -> None:
    async def work() -> None:
        clock, steps = Clock(), Steps(MODEL, asyncio.get_running_loop())
        steps.stream(10, clock.mark("stream"))
        await asyncio.sleep(0.25)  # the third step is under way: what comes now joins the fourth
        steps.prompt(150, 0, clock.mark("prompt"))
        await asyncio.sleep(10)
        # Three plain steps, one with 100 tokens, one with 50, five plain ones.
        assert clock.seen == {"prompt": 0.3 + 0.2 + 0.15, "stream": 1.15}
        assert steps.busy == pytest.approx(1.15)
        assert steps.computing == pytest.approx(0.15)

    run(work)


def test_a_stream_that_comes_at_a_steps_end_is_part_of_the_next() -> None:
    async def work() -> None:
        clock, steps = Clock(), Steps(MODEL, asyncio.get_running_loop())
        steps.stream(5, clock.mark("first"))
        steps.prompt(100, 0, lambda: steps.stream(2, clock.mark("second")))
        await asyncio.sleep(10)
        assert clock.seen == {"second": 0.4, "first": 0.6}

    run(work)


def test_prompts_are_served_in_turn_and_share_a_step() -> None:
    async def work() -> None:
        clock, steps = Clock(), Steps(MODEL, asyncio.get_running_loop())
        for name, tokens in (("long", 130), ("short", 20), ("last", 100)):
            steps.prompt(tokens, 0, clock.mark(name))
        await asyncio.sleep(10)
        assert clock.seen == {"long": 0.4, "short": 0.4, "last": 0.4 + 0.1 + 0.05}

    run(work)


def test_attention_to_what_stands_before_takes_time() -> None:
    model = RateModel("test", 0.0, 0.001, attention=0.0001)
    assert model.compute(100, 1000) == pytest.approx(100 * (0.001 + 0.0001 * 1.05))


def test_memory_finds_whole_blocks_and_leaves_one_token() -> None:
    memory, talk = Memory(1000, caches=True, block=10), Talk("a")
    assert memory.hold(talk, "leg", 105)
    memory.fill(talk, "leg", 105, new_owner="lease")
    talk.turn = 1
    assert memory.found(talk, 200) == 100
    assert memory.found(talk, 100) == 90
    assert Memory(1000, caches=False, block=10).found(talk, 200) == 0


def test_memory_gives_way_from_the_end_of_what_is_longest_unused() -> None:
    memory = Memory(1000, caches=True, block=10)
    talks = [Talk(name) for name in "abc"]
    for talk in talks[:2]:
        assert memory.hold(talk, "leg", 400)
        memory.fill(talk, "leg", 400, new_owner="lease")
        memory.drop(talk.name, "lease")
    assert memory.hold(talks[2], "leg", 350)
    assert [memory.found(talk, 401) for talk in talks] == [250, 400, 0]
    assert memory.used == 350
    assert not memory.hold(Talk("d"), "leg", 651)
    assert memory.hold(Talk("d"), "leg", 650)
    assert [memory.found(talk, 401) for talk in talks[:2]] == [0, 0]


def test_memory_counts_what_a_group_shares_once() -> None:
    memory = Memory(1000, caches=True, block=10)
    talks = [Talk(name, shared=300, group="g") for name in "abc"]
    for talk in talks:
        assert memory.found(talk, 400) == (0 if talk is talks[0] else 300)
        assert memory.hold(talk, "leg", 400)
        memory.fill(talk, "leg", 400, new_owner="lease")
    assert memory.used == 300 + 3 * 100


def test_a_cut_ends_what_older_turns_share() -> None:
    talk = Talk("a")
    for turn, kept in ((3, 50), (5, 80), (7, 60)):
        talk.turn = turn
        talk.cut(kept)
    assert [talk.common(turn, 100) for turn in (0, 3, 5, 7)] == [50, 60, 60, 100]
    assert talk.common(0, 30) == 30


def test_a_turn_takes_the_seconds_of_its_legs() -> None:
    async def work() -> None:
        clock, talk = Clock(), Talk("a")
        p, d = engine("p"), engine("d")
        filled = await prefill(p, talk, 250, None)
        clock.mark("prefill")()
        first: list[Begun] = []

        def begun(leg: Begun) -> None:
            first.append(leg)
            clock.mark("first")()

        lease = await decode(d, talk, 250, 5, (p, filled.lease), begun)
        clock.mark("over")()
        # 0.5 before, then 250 tokens in three steps
        assert clock.seen["prefill"] == pytest.approx(0.5 + 0.25 + 0.3)
        # 249 tokens are moved, the last one is computed
        assert clock.seen["first"] - clock.seen["prefill"] == pytest.approx(0.249 + 0.1 + 0.001)
        assert clock.seen["over"] - clock.seen["first"] == pytest.approx(4 * 0.1)
        assert (filled.local, filled.pulled, first[0]) == (0, 0, Begun(0, 249, 1))
        assert (lease.tokens, d.pinned) == (254, 260)
        assert not p.leases

    run(work)


@pytest.mark.parametrize(
    ("held", "turn", "keeps", "prompt", "left", "match", "pulled"),
    [
        (200, 0, None, 300, 60.0, Match.FULL, 200),
        (205, 0, None, 300, 60.0, Match.FULL, 200),
        (200, 1, 85, 300, 60.0, Match.CUT, 80),
        (200, 1, 5, 300, 60.0, Match.MISMATCH, 0),
        (200, 1, 15, 300, 60.0, Match.THRESHOLD, 0),
        (200, 0, None, 300, 4.0, Match.FAILED, 0),
    ],
)
def test_prefill_pulls_what_is_common_and_no_more(
    held: int, turn: int, keeps: int | None, prompt: int, left: float, match: Match, pulled: int
) -> None:
    async def work() -> None:
        talk, p, d = Talk("a"), engine("p", caches=False), engine("d")
        await d.admit(talk, "leg", held)
        lease = d.grant(talk, "leg", held, left)
        talk.turn = 1
        if keeps is not None:
            talk.cut(keeps)
        filled: Filled = await prefill(p, talk, prompt, (d, lease.name))
        assert (filled.match, filled.pulled) == (match, pulled)
        assert filled.pulling == pytest.approx(3.0 + 0.001 * pulled if pulled else 0.0)
        assert d.pinned == 0

    run(work)


def test_a_leg_waits_for_memory_until_a_lease_ends() -> None:
    async def work() -> None:
        clock, d = Clock(), engine("d", tokens=1000)
        await d.admit(Talk("a"), "leg", 700)
        d.grant(Talk("a"), "leg", 700, 30.0)
        await d.admit(Talk("b"), "leg", 400)
        clock.mark("admitted")()
        assert clock.seen["admitted"] == 30.0
        assert d.waited == 1

    run(work)


def test_transfers_share_an_engines_links() -> None:
    async def work() -> None:
        model = RateModel("test", 0.0, 0.0, links=1)
        both = [Engine(name, model, FLEET, tokens=1, caches=True, sequences=1) for name in "ab"]
        clock = Clock()

        async def fetch(place: Engine, name: str) -> None:
            await place.fetch(2.0)
            clock.mark(name)()

        await asyncio.gather(fetch(both[0], "one"), fetch(both[0], "two"), fetch(both[1], "other"))
        assert clock.seen == {"one": 2.0, "two": 4.0, "other": 2.0}

    run(work)
