"""What docs/upgrading.md promises: engines are replaced under traffic, and routers start again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from antiphon_server.protocol import Info
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, serve
from doubles.redis_server import RedisServer
from rig.command import Command, running

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}
TALKS = 4


class Built(SimulatedEngine):
    """An engine that says which vLLM it is."""

    vllm = "0.32.0"

    def info(self) -> Info:
        return msgspec.structs.replace(super().info(), vllm=self.vllm)


@asynccontextmanager
async def generation(rig: Any, vllm: str) -> AsyncIterator[dict[str, tuple[SimulatedEngine, str]]]:
    """Another prefill and another decode engine, of their own build; not in the fleet yet."""
    found: dict[str, tuple[SimulatedEngine, str]] = {}
    async with AsyncExitStack() as stack:
        for role, own in (("prefill", rig.prefill[0]), ("decode", rig.decode[0])):
            engine = Built(own.settings, clock=rig.clock, cluster=own.cluster)
            engine.vllm = vllm
            found[role] = engine, await stack.enter_async_context(serve(engine))
        yield found


def crossed(rig: Any, new: dict[str, tuple[SimulatedEngine, str]]) -> list[str]:
    """Legs that were to read KV of an engine of another build."""
    builds = [{e.engine_id for e in (rig.prefill[0], rig.decode[0])}, {e.engine_id for e, _ in new.values()}]
    found = []
    for engine in (rig.prefill[0], rig.decode[0], *(engine for engine, _ in new.values())):
        for body in rig.legs(engine):
            other = (body.get("kv_transfer_params") or {}).get("remote_engine_id")
            if other is not None and not any({engine.engine_id, other} <= build for build in builds):
                found.append(f"{engine.settings.role} of {engine.engine_id} from {other}")
    return found


async def talk(rig: Any, name: str, opening: list[Message], over: asyncio.Event, paths: list[str]) -> None:
    """Turn upon turn; each must be answered, and exactly so."""
    messages = list(opening)
    while not over.is_set():
        answered = await rig.ask(messages, conversation=name, stream=len(messages) % 4 == 0)
        paths.append(answered.path)
        messages = [*messages, {"role": "assistant", "content": answered.text}, FOLLOW][:12]
        if len(messages) == 12:
            messages = list(opening)


async def replaced(rig: Any, new: dict[str, tuple[SimulatedEngine, str]], settled: Any, turns: Any) -> None:
    """The order of the guide: a complete new pair joins, the old one drains, is forgotten and ends."""
    workers = rig.state.workers
    for role in ("prefill", "decode"):
        await workers.add(role, new[role][1])
        await turns()
    old = {role: workers.of(role)[0].url for role in ("prefill", "decode")}
    for role in ("decode", "prefill"):
        workers.drain(role, old[role])
        await turns()
    await settled(lambda: all(workers.find(url).in_flight == 0 for url in old.values()))
    for role, engine in (("decode", rig.decode[0]), ("prefill", rig.prefill[0])):
        await workers.remove(role, old[role])
        await rig.kill(engine)
        await turns()


async def test_a_new_build_takes_over_under_traffic(start: Any, settled: Any, opening: list[Message]) -> None:
    slow = {"decode_rate": 400.0}
    rig = await start(decode=slow, router={"attempts": 1})
    over, paths = asyncio.Event(), list[str]()

    async def turns() -> None:
        """Until every conversation has gone on for a while."""
        so_far = len(paths)
        await settled(lambda: len(paths) >= so_far + 3 * TALKS or any(task.done() for task in talks))

    async with generation(rig, "0.33.0") as new:
        talks = [asyncio.create_task(talk(rig, f"c{i}", opening, over, paths)) for i in range(TALKS)]
        await turns()
        await replaced(rig, new, settled, turns)
        before = len(paths)
        await turns()
        over.set()
        await asyncio.gather(*talks)  # none failed, and none got other tokens than it should
        assert crossed(rig, new) == []
        assert rig.count("antiphon_retries_total", leg="prefill") == 0
        assert rig.count("antiphon_retries_total", leg="decode") == 0
        assert "reuse" in paths[before:]
        assert len(rig.legs(new["decode"][0])) > len(paths) - before


async def incompatible(rig: Any) -> int:
    """Pairs that the router counts as such, when it is asked."""
    await rig.client.get("/metrics")
    return int(rig.count("antiphon_pairs_incompatible"))


async def test_half_a_new_pair_gets_no_turns(start: Any, opening: list[Message]) -> None:
    rig = await start()
    async with generation(rig, "0.33.0") as new:
        await rig.state.workers.add("decode", new["decode"][1])
        for i in range(8):
            await rig.ask(opening, conversation=f"c{i}")
        assert rig.legs(new["decode"][0]) == []
        assert await incompatible(rig) == 1
        await rig.state.workers.add("prefill", new["prefill"][1])
        for i in range(8):
            await rig.ask(opening, conversation=f"d{i}")
        assert rig.legs(new["decode"][0])
        assert await incompatible(rig) == 2


async def test_of_the_same_build_a_drained_engine_still_gives_its_kv(
    start: Any, opening: list[Message]
) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    async with generation(rig, Built.vllm) as new:
        for role in ("prefill", "decode"):
            await rig.state.workers.add(role, new[role][1])
        rig.state.workers.drain("decode", rig.state.workers.decode[0].url)
        second = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
        assert second.path == "reuse"
        assert len(rig.legs(new["decode"][0])) == 1


@asynccontextmanager
async def engines() -> AsyncIterator[tuple[list[str], SimulatedEngine]]:
    cluster = SimulatedCluster()
    prefill = SimulatedEngine(Settings(role="prefill", threshold=0), cluster=cluster)
    decode = SimulatedEngine(Settings(role="decode"), cluster=cluster)
    async with serve(prefill) as p, serve(decode) as d:
        yield ["--prefill", p, "--decode", d, "--no-calibrate", "--paths", "reuse"], decode


async def turn(command: Command, messages: list[Message]) -> tuple[str, Message]:
    """Its path, and what was answered."""
    body = {"model": "simulated", "messages": messages, "conversation_id": "c"}
    reply = await command.client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    answer = {"role": "assistant", "content": reply.json()["choices"][0]["message"]["content"]}
    return reply.headers["x-antiphon-reuse"].split(";")[0], answer


@pytest.mark.parametrize(("store", "path"), [("redis", "path=reuse"), ("memory", "path=cold")])
async def test_a_router_that_starts_again_goes_on_with_redis_and_without_begins_anew(
    redis_server: RedisServer, opening: list[Message], store: str, path: str
) -> None:
    async with engines() as (arguments, decode):
        arguments += ["--store", redis_server.url] if store == "redis" else []
        async with running(*arguments) as command:
            _, answer = await turn(command, opening)
            command.signal(signal.SIGTERM)
            assert await command.ended() == 0
        # Without Redis nobody could go on with it: nothing stays pinned.
        assert bool(decode.pinned_blocks) == (store == "redis")
        async with running(*arguments) as again:
            assert (await turn(again, [*opening, answer, FOLLOW]))[0] == path
