"""The same promises as in ``test_fuzz.py``, on real sockets, in real time and with a real Redis, over a walk
that is drawn from a fixed seed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import httpx
import pytest

from antiphon_server.router.app import create_app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.state import State
from antiphon_server.simulator import Fault, Settings, SimulatedCluster, SimulatedEngine, serve
from doubles.histories import CHANGES, PEOPLE, QUESTIONS, Past, Who, oracle, streamed
from doubles.redis_server import RedisServer

STEPS = 300
PEOPLE_HERE = [who for who in PEOPLE if who.conversation not in {"ü\n..", None}]


class Walk:
    """Clients of two routers that share a store. ``clock``: real time, and what was skipped."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.skipped = 0.0
        self.cluster = SimulatedCluster()
        common: dict[str, Any] = {"block_size": 8, "capacity": 120, "answer_tokens": 6, "threshold": 0}
        rates: dict[str, Any] = {"prefill_rate": 20000.0, "decode_rate": 2000.0, "transfer_rate": 20000.0}
        self.prefill = [self._engine(Settings(role="prefill", **common, **rates)) for _ in range(2)]
        self.decode = [self._engine(Settings(role="decode", **common, **rates)) for _ in range(2)]
        self.states: list[State] = []
        self.clients: list[httpx.AsyncClient] = []
        self.pasts: dict[Who, Past] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.troubled = False
        self.right = 0

    @property
    def engines(self) -> list[SimulatedEngine]:
        return [*self.prefill, *self.decode]

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.skipped

    @asynccontextmanager
    async def running(self, store: str, serve_router: Any) -> AsyncIterator[None]:
        """Engines and routers."""
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(serve(engine)) for engine in self.engines]
            for _ in range(2):
                settings = RouterSettings(
                    prefill=urls[:2],
                    decode=urls[2:],
                    store=store,
                    store_timeout=5.0,
                    calibrate=False,
                    retry_pause=0.01,
                    pull_grace=1.0,
                    probe_interval=0.5,
                    pressure_interval=0.2,
                )
                app = create_app(settings, clock=self.clock)
                url = await stack.enter_async_context(serve_router(app))
                self.states.append(cast("State", app.state.router))
                self.clients.append(
                    await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30.0))
                )
            yield

    async def step(self) -> None:
        """One of what may happen."""
        kind = self.draw.random()
        if kind < 0.55:
            await self._turn(self.draw.choice(PEOPLE_HERE))
        elif kind < 0.75:
            who = self.draw.choice(PEOPLE_HERE)
            self.tasks += [asyncio.create_task(self._turn(who)) for _ in range(self.draw.randint(1, 3))]
            await asyncio.sleep(self.draw.choice([0.0, 0.001, 0.005]))
        elif kind < 0.83:
            for task in self.tasks[-2:]:
                task.cancel()
        elif kind < 0.88:
            await self._close(self.draw.choice(PEOPLE_HERE))
        elif kind < 0.94:
            self.troubled = True
            trouble: Any = self.draw.choice(["status", "drop", "cut", "delay"])
            path = self.draw.choice(["/v1/", "/antiphon/leases"])
            fault = Fault(kind=trouble, path=path, times=self.draw.randint(1, 3), seconds=0.02)
            self.draw.choice(self.engines).faults.add(fault)
        elif kind < 0.96:
            self.troubled = True
            self.draw.choice(self.engines).restart()
        else:
            self.skipped += self.draw.choice([1.0, 20.0, 70.0])

    async def end(self) -> None:
        """Everything gets well; all that is in flight comes to its end; all conversations are closed."""
        for engine in self.engines:
            engine.faults.clear()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for who in PEOPLE_HERE:
            await self._close(who)

    async def _turn(self, who: Who) -> None:
        past = self.pasts.setdefault(who, Past())
        messages = self.draw.choice(CHANGES)(past, self.draw.choice(QUESTIONS))
        stream = self.draw.random() < 0.5
        body = {
            "model": "simulated",
            "messages": messages if len(messages) <= 9 else messages[:1] + messages[-1:],
            "stream": stream,
            "return_token_ids": True,
            "user": who.owner,
            "conversation_id": who.conversation,
            "cache_salt": who.salt,
        }
        body = {name: value for name, value in body.items() if value is not None}
        wrong, expected = oracle(self.decode[0].settings, body)
        client = self.draw.choice(self.clients)
        reply = await client.post("/v1/chat/completions", json=body, headers=who.headers)
        if reply.status_code != 200:
            assert json.loads(reply.content)["error"]["message"]
            assert reply.status_code == wrong or self.troubled, reply.text
            return
        if stream:
            ids, text, last = streamed(reply.content)
            if last != "[DONE]":
                assert self.troubled
                assert ids == expected[: len(ids)]
                return
        else:
            choice = reply.json()["choices"][0]
            ids, text = choice["token_ids"], choice["message"]["content"]
        assert ids == expected, reply.headers["x-antiphon-reuse"]
        self.right += 1
        past.messages, past.answer = cast("list[Any]", body["messages"]), text

    async def _close(self, who: Who) -> None:
        reply = await self.draw.choice(self.clients).delete(
            f"/v1/conversations/{who.conversation}", headers=who.headers
        )
        assert reply.status_code in {204, 404}

    def _engine(self, settings: Settings) -> SimulatedEngine:
        return SimulatedEngine(settings, clock=self.clock, cluster=self.cluster)


@pytest.mark.parametrize("seed", [1, 2])
async def test_promises_hold_on_real_sockets_with_two_routers_on_one_redis(
    redis_server: RedisServer, serve_app: Any, settled: Any, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    walk = Walk(seed)
    async with walk.running(redis_server.url, serve_app):
        for _ in range(STEPS):
            await walk.step()
            for task in [task for task in walk.tasks if task.done()]:
                walk.tasks.remove(task)
                with contextlib.suppress(asyncio.CancelledError):
                    task.result()
        await walk.end()
        for state in walk.states:
            await settled(lambda state=state: state.admission.in_flight == 0 and not state._background)
            await settled(lambda state=state: all(worker.in_flight == 0 for worker in state.workers))
            await settled(lambda state=state: not state.conversations._visits)
            assert not [w for w in state.workers.decode if await state.store.tokens(w.name)]
            assert not any(state.rates.ahead(worker.name) for worker in state.workers)
        walk.skipped += 700.0  # what nobody could release ends by the engines' clocks
        await settled(lambda: all(engine.pinned_blocks == engine.running == 0 for engine in walk.engines))
    assert walk.right > STEPS / 3
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}]
