"""Steps of a simulated engine: prompts and streams share them."""

from __future__ import annotations

import asyncio

import pytest

from antiphon_server.simulator.steps import Steps


class Watch:
    """Time that passes only while steps last."""

    def __init__(self) -> None:
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def test_a_prompt_slows_the_streams_beside_it_while_it_is_computed() -> None:
    watch = Watch()
    steps = Steps(0.02, 1000.0, 100, watch.sleep)
    gaps: list[float] = []

    async def stream() -> None:
        for _ in range(5):
            before = watch.now
            await steps.token()
            gaps.append(watch.now - before)

    streaming = asyncio.create_task(stream())
    await steps.prompt(250)
    await streaming
    assert gaps == pytest.approx([0.12, 0.12, 0.07, 0.02, 0.02])


async def test_short_prompts_share_a_step_and_long_ones_wait_in_line() -> None:
    watch = Watch()
    steps = Steps(0.0, 1000.0, 100, watch.sleep)
    ends: dict[str, float] = {}

    async def prompt(name: str, tokens: int) -> None:
        await steps.prompt(tokens)
        ends[name] = watch.now

    await asyncio.gather(prompt("a", 40), prompt("b", 60), prompt("c", 150), prompt("d", 10))
    assert ends == pytest.approx({"a": 0.1, "b": 0.1, "c": 0.26, "d": 0.26})


async def test_what_its_client_left_costs_nothing() -> None:
    watch = Watch()
    steps = Steps(1.0, 1000.0, 1000, watch.sleep)
    left = asyncio.create_task(steps.prompt(500))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await steps.prompt(100)
    assert watch.now == pytest.approx(1.1)
