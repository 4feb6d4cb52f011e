"""Two routers on real sockets, over the same engines and one real Redis."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import httpx
import pytest

from antiphon_server.router.app import create_app
from antiphon_server.router.state import State
from doubles.redis_server import RedisServer
from rig.command import running

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}
Twins = Callable[..., Awaitable[tuple[Any, Any]]]
PATIENCE = 30.0


@pytest.fixture
async def twins(start: Any, serve_app: Any, redis_server: RedisServer) -> AsyncIterator[Twins]:
    """Start engines and two routers over them."""
    async with AsyncExitStack() as stack:

        async def twins(**given: Any) -> tuple[Any, Any]:
            shared = {"store": redis_server.url, "store_timeout": 5.0, "probe_interval": 0.1}
            one = await start(router=shared, **given)
            app = create_app(one.state.settings, clock=one.clock)
            url = await stack.enter_async_context(serve_app(app))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=PATIENCE))
            state = cast("State", app.state.router)
            while not all(worker.healthy for worker in state.workers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert not one.state.store.degraded
            assert not state.store.degraded
            return one, dataclasses.replace(one, client=client, state=state, app=app)

        yield twins


async def test_turns_that_alternate_go_on_with_the_kv(
    twins: Twins, settled: Any, opening: list[Message]
) -> None:
    one, two = await twins(decodes=2)
    messages, paths = list(opening), []
    for number in range(6):
        router = (one, two)[number % 2]
        answered = await router.ask(messages, conversation="c", stream=number > 2)
        paths.append(answered.path)
        messages += [{"role": "assistant", "content": answered.text}, FOLLOW]
    assert paths == ["cold", "reuse", "reuse", "reuse", "reuse", "reuse"]
    await settled(lambda: sum(len(engine.pinned) for engine in one.decode) == 1)


async def test_first_word_of_a_conversation_elsewhere_is_no_other_tenants(
    twins: Twins, opening: list[Message]
) -> None:
    one, two = await twins()
    await one.ask(opening, conversation="c", headers={"Authorization": "Bearer mine"})
    other = await two.ask(opening, conversation="c", headers={"Authorization": "Bearer theirs"})
    assert other.path == "cold"


async def test_of_two_turns_at_once_only_one_gets_the_frontier(
    twins: Twins, settled: Any, opening: list[Message]
) -> None:
    one, two = await twins(decode={"decode_rate": 200.0})
    first = await one.ask(opening, conversation="c")
    follow = [*opening, first.message, FOLLOW]
    both = await asyncio.gather(*(router.ask(follow, conversation="c") for router in (one, two)))
    assert sorted(answered.path for answered in both) == ["cold", "reuse"]
    await settled(lambda: len(one.decode[0].pinned) == 1)
    third = await two.ask([*follow, both[0].message, FOLLOW], conversation="c")
    assert third.path == "reuse"


async def test_conversation_is_closed_and_described_by_the_other_router(
    twins: Twins, settled: Any, opening: list[Message]
) -> None:
    one, two = await twins()
    await one.ask(opening, conversation="c")
    described = (await two.client.get("/v1/conversations/c")).json()
    assert [kept["model"] for kept in described["kept"]] == ["simulated"]
    assert (await two.client.delete("/v1/conversations/c")).status_code == 204
    await settled(lambda: one.decode[0].pinned_blocks == one.prefill[0].pinned_blocks == 0)
    assert (await two.client.get("/v1/conversations/c")).status_code == 404
    assert (await one.ask(opening, conversation="c")).path == "cold"


async def test_turn_in_flight_here_does_not_bring_back_what_was_closed_there(
    twins: Twins, settled: Any, opening: list[Message]
) -> None:
    one, two = await twins(decode={"decode_rate": 100.0})
    turn = asyncio.create_task(one.ask(opening, conversation="c"))
    await settled(lambda: one.decode[0].running)
    await two.client.delete("/v1/conversations/c")
    one.clock.time += 5.0
    await turn
    await settled(lambda: one.decode[0].pinned_blocks == 0)
    assert (await two.client.get("/v1/conversations/c")).status_code == 404
    assert (await one.ask(opening, conversation="c")).path == "cold"
    await settled(lambda: len(one.decode[0].pinned) == 1)


async def test_restarted_engine_is_fenced_for_both(
    twins: Twins, settled: Any, opening: list[Message]
) -> None:
    one, two = await twins()
    first = await one.ask(opening, conversation="c")
    await one.ask(opening, conversation="d")
    worker = one.state.workers.decode[0]
    before = worker.epoch
    one.decode[0].restart()
    await settled(lambda: worker.epoch != before)
    await settled(lambda: two.state.workers.decode[0].epoch == worker.epoch)
    while await two.state.store.tokens(worker.name):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    again = await two.ask([*opening, first.message, FOLLOW], conversation="c")
    assert again.path == "cold"
    third = await one.ask([*opening, first.message, FOLLOW, again.message, FOLLOW], conversation="c")
    assert third.path == "reuse"


async def test_redis_dies_and_no_turn_does(
    twins: Twins, settled: Any, redis_server: RedisServer, opening: list[Message]
) -> None:
    one, two = await twins()
    first = await one.ask(opening, conversation="c")
    redis_server.kill()
    messages = [*opening, first.message, FOLLOW]
    second = await one.ask(messages, conversation="c")
    await settled(lambda: one.state.store.degraded and two.state.store.degraded)
    ready = (await one.client.get("/ready")).json()
    assert (ready["ready"], ready["store"]) == (True, "degraded")
    assert "antiphon_store_degraded 1.0" in (await one.client.get("/metrics")).text
    messages += [second.message, FOLLOW]
    third = await one.ask(messages, conversation="c")
    messages += [third.message, FOLLOW]
    fourth = await one.ask(messages, conversation="c")
    assert fourth.path == "reuse"
    redis_server.start()
    await settled(lambda: not (one.state.store.degraded or two.state.store.degraded))
    fifth = await two.ask([*messages, fourth.message, FOLLOW], conversation="c")
    assert fifth.path == "reuse"
    assert (await one.client.get("/ready")).json()["store"] == "ok"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_conversations_of_a_router_that_ended_go_on_with_the_other(
    start: Any, redis_server: RedisServer, opening: list[Message], end: signal.Signals
) -> None:
    one = await start(router={"store": redis_server.url, "store_timeout": 5.0, "conversations": 50})
    settings = one.state.settings
    arguments = ["--store", redis_server.url, "--no-calibrate", "--paths", "reuse"]
    for flag, urls in (("--prefill", settings.prefill), ("--decode", settings.decode)):
        arguments += [part for url in urls for part in (flag, url)]
    async with running(*arguments) as other:
        messages = [*opening]
        body = {"model": "simulated", "messages": messages}
        for name in ("c", "d"):
            reply = await other.client.post("/v1/chat/completions", json={**body, "conversation_id": name})
            assert reply.status_code == 200
        other.signal(end)
        await other.ended()
    said = reply.json()["choices"][0]["message"]
    first = {"role": "assistant", "content": said["content"]}
    answered = await one.ask([*opening, first, FOLLOW], conversation="c")
    assert answered.path == "reuse"
    async with asyncio.timeout(PATIENCE):
        while len(await one.state.store.held()) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await one.state.leases.renew()
    held = {frontier.key.conversation: frontier for frontier in await one.state.store.held()}
    assert sorted(held) == ["c", "d"]
    assert held["d"].expiry is not None
