"""Many conversations at once, over every way of running code: no call carries another one's id."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAI

import antiphon
import antiphon_openai
from antiphon.testing import FakeRouter

CONVERSATIONS = 200
TURNS = 5
AT_ONCE = 16
"""Conversations at once, in threads and on the event loop each."""


@dataclass(frozen=True)
class Clients:
    """One of each kind, shared by all conversations. A prompt says which conversation it belongs to."""

    router: FakeRouter
    openai: OpenAI
    aopenai: AsyncOpenAI
    hooked: httpx.Client
    ahooked: httpx.AsyncClient

    def turn(self, name: str, turn: int) -> None:
        prompt: Any = {"model": "m", "messages": [{"role": "user", "content": name}]}
        if turn % 2:
            self.openai.chat.completions.create(**prompt)
        else:
            url = f"{self.router.base_url}/chat/completions"
            self.hooked.post(url, json=prompt).raise_for_status()

    async def aturn(self, name: str, turn: int) -> None:
        prompt: Any = {"model": "m", "messages": [{"role": "user", "content": name}]}
        if turn % 2:
            await self.aopenai.chat.completions.create(**prompt)
        else:
            url = f"{self.router.base_url}/chat/completions"
            (await self.ahooked.post(url, json=prompt)).raise_for_status()

    def turns(self, name: str) -> Iterator[None]:
        for turn in range(TURNS):
            self.turn(name, turn)
            yield

    async def aturns(self, name: str) -> AsyncIterator[None]:
        for turn in range(TURNS):
            await self.aturn(name, turn)
            yield


def in_threads(clients: Clients, pool: Executor, name: str) -> None:
    with antiphon.conversation(name):
        turn = antiphon.carry(clients.turn)
        threads = [threading.Thread(target=turn, args=(name, number)) for number in range(TURNS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def in_a_pool(clients: Clients, pool: Executor, name: str) -> None:
    with antiphon.conversation(name):
        for future in [pool.submit(clients.turn, name, number) for number in range(TURNS)]:
            future.result()


def in_a_map(clients: Clients, pool: Executor, name: str) -> None:
    with antiphon.conversation(name):
        list(pool.map(clients.turn, [name] * TURNS, range(TURNS)))


def in_steps(clients: Clients, pool: Executor, name: str) -> None:
    conversation = antiphon.conversation(name)
    for _ in conversation.steps(clients.turns(name)):
        assert antiphon.current() is None
    conversation.close()


async def in_tasks(clients: Clients, pool: Executor, name: str) -> None:
    async with antiphon.conversation(name):
        await asyncio.gather(*(clients.aturn(name, number) for number in range(TURNS)))


async def in_to_thread(clients: Clients, pool: Executor, name: str) -> None:
    async with antiphon.conversation(name):
        for number in range(TURNS):
            await asyncio.to_thread(clients.turn, name, number)


async def in_an_executor_of_the_loop(clients: Clients, pool: Executor, name: str) -> None:
    loop = asyncio.get_running_loop()
    async with antiphon.conversation(name):
        turns = [loop.run_in_executor(pool, clients.turn, name, number) for number in range(TURNS)]
        await asyncio.gather(*turns)


async def in_async_steps(clients: Clients, pool: Executor, name: str) -> None:
    conversation = antiphon.conversation(name)
    async for _ in conversation.steps(clients.aturns(name)):
        assert antiphon.current() is None
    await conversation.aclose()


WAYS = [in_threads, in_a_pool, in_a_map, in_steps]
ASYNC_WAYS = [in_tasks, in_to_thread, in_an_executor_of_the_loop, in_async_steps]


async def test_no_call_carries_another_conversations_id(antiphon_router: FakeRouter) -> None:
    with (
        ThreadPoolExecutor(AT_ONCE) as agents,
        ThreadPoolExecutor(AT_ONCE) as workers,
        antiphon_openai.wrap(OpenAI(base_url=antiphon_router.base_url, api_key="k")) as openai,
        antiphon.hook(httpx.Client(headers={"Authorization": "Bearer k"}, timeout=60)) as hooked,
    ):
        async with (
            antiphon_openai.wrap(AsyncOpenAI(base_url=antiphon_router.base_url, api_key="k")) as aopenai,
            antiphon.hook(httpx.AsyncClient(headers={"Authorization": "Bearer k"}, timeout=60)) as ahooked,
        ):
            clients = Clients(antiphon_router, openai, aopenai, hooked, ahooked)
            pool, room = antiphon.carrying(workers), asyncio.Semaphore(AT_ONCE)

            async def on_the_loop(number: int) -> None:
                async with room:
                    await ASYNC_WAYS[number % len(ASYNC_WAYS)](clients, pool, f"async-{number}")

            def in_a_thread(number: int) -> asyncio.Future[None]:
                way = WAYS[number % len(WAYS)]
                loop = asyncio.get_running_loop()
                return loop.run_in_executor(agents, way, clients, pool, f"sync-{number}")

            numbers = range(CONVERSATIONS // 2)
            await asyncio.gather(*map(on_the_loop, numbers), *map(in_a_thread, numbers))

    calls, names = (
        antiphon_router.calls(),
        {f"{kind}-{number}" for number in numbers for kind in ("sync", "async")},
    )
    spoken = Counter(
        (call.body["messages"][0]["content"], call.headers.get("x-session-id")) for call in calls
    )
    assert spoken == {(name, name): TURNS for name in names}
    in_bodies = [call for call in calls if "conversation_id" in call.body]
    assert len(in_bodies) == CONVERSATIONS * (TURNS // 2)
    assert all(call.body["conversation_id"] == call.headers["x-session-id"] for call in in_bodies)
    assert len({call.headers["x-turn-id"] for call in calls}) == CONVERSATIONS * TURNS
    assert Counter(antiphon_router.ends()) == dict.fromkeys(names, 1)
