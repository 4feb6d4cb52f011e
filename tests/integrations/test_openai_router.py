"""The wrapped client against our router over simulated engines: the names on both sides are the same ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI

import antiphon
import antiphon_openai
from antiphon_server.router.app import create_app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, serve
from doubles.routing import serve_router

SYSTEM = {"role": "system", "content": "You are an agent that answers in short letters. " * 3}
ASK: Any = [SYSTEM, {"role": "user", "content": "Name the first letters, please."}]
FOLLOW: Any = {"role": "user", "content": "And the next ones?"}


@asynccontextmanager
async def router_over(prefill: SimulatedEngine, decode: SimulatedEngine) -> AsyncIterator[str]:
    async with serve(prefill) as prefill_url, serve(decode) as decode_url:
        workers: dict[str, Any] = {
            "prefill": [prefill_url],
            "decode": [decode_url],
            "paths": ["reuse"],
            "calibrate": False,
        }
        app = create_app(RouterSettings(**workers))
        async with serve_router(app) as url:
            yield f"{url}/v1"


@pytest.mark.parametrize("kind", ["async block", "sync block"])
async def test_second_turn_reuses_the_first_and_leaving_the_block_frees_the_kv(kind: str) -> None:
    cluster = SimulatedCluster()
    settings: dict[str, Any] = {"threshold": 0, "prefix_caching": False}
    prefill = SimulatedEngine(Settings(role="prefill", **settings), cluster=cluster)
    decode = SimulatedEngine(Settings(role="decode"), cluster=cluster)
    paths: list[str] = []

    async def talk(client: AsyncOpenAI) -> None:
        messages = [*ASK]
        for _ in range(2):
            raw = await client.chat.completions.with_raw_response.create(model="simulated", messages=messages)
            paths.append(raw.headers["x-antiphon-reuse"].split(";")[0])
            messages += [raw.parse().choices[0].message.to_dict(), FOLLOW]
        assert decode.pinned_blocks > 0

    async with router_over(prefill, decode) as url, AsyncOpenAI(base_url=url, api_key="k") as client:
        antiphon_openai.wrap(client)
        if kind == "async block":
            async with antiphon.conversation(f"agent/{kind}") as conversation:
                await talk(client)
        else:
            with antiphon.conversation(f"agent/{kind}") as conversation:
                await talk(client)
        assert paths[0] == "path=cold"
        assert paths[1] in ("path=append", "path=reuse")
        seen = conversation.statistics
        assert (seen.turns, seen.paths["cold"], seen.divergence) == (2, 1, None)
        assert seen.last_matched
        async with asyncio.timeout(30):
            while decode.pinned_blocks:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0.01)
