"""The fleet: engines that join, drain, leave, die and return, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from antiphon_server.router.fleet.breaker import BreakerPolicy, BreakerState
from antiphon_server.router.fleet.placement import Placement
from antiphon_server.router.fleet.worker import RANK_HEADER, Role, Worker
from antiphon_server.router.fleet.workers import DuplicateEngineError, UnknownEngineError, Workers
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.upstream.upstream import Timeouts, Upstream
from antiphon_server.simulator import Settings, SimulatedEngine, serve
from doubles.engine_info import info

Settled = Callable[[Callable[[], object]], Awaitable[None]]
KEY = Key("t", "m", "", "c")


class Site:
    """Engines on sockets of their own, and a fleet that knows of them."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._running: dict[str, AsyncExitStack] = {}
        self.engines: dict[str, SimulatedEngine] = {}
        self.lives: list[tuple[str, str | None]] = []
        self.removed: list[str] = []

    async def engine(self, role: Role, **given: Any) -> str:
        return await self._serve(SimulatedEngine(Settings(role=role, **given)), 0)

    async def kill(self, url: str) -> None:
        await self._running.pop(url).aclose()

    async def revive(self, url: str) -> None:
        await self._serve(self.engines[url], int(url.rpartition(":")[2]))

    async def _serve(self, engine: SimulatedEngine, port: int) -> str:
        own = await self._stack.enter_async_context(AsyncExitStack())
        url = await own.enter_async_context(serve(engine, port=port))
        self._running[url] = own
        self.engines[url] = engine
        return url

    async def workers(
        self, prefill: list[str], decode: list[str], *, start: bool = True, **own: Any
    ) -> Workers:
        upstream = Upstream(Timeouts(5, 5, 5))
        self._stack.push_async_callback(upstream.close)
        given: dict[str, Any] = {"restarted": self._restart, "removed": self._remove}
        given |= {"interval": 0.05, "timeout": 5.0} | own
        workers = Workers(prefill, decode, upstream, **given)
        self._stack.push_async_callback(workers.stop)
        if start:
            await workers.start()
        return workers

    async def _restart(self, worker: Worker) -> None:
        self.lives.append((worker.name, worker.epoch))

    async def _remove(self, worker: Worker) -> None:
        self.removed.append(worker.name)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        yield Site(stack)


def only(workers: Workers) -> Worker:
    (worker,) = workers.decode
    return worker


# --- joining and leaving ---


async def test_engine_that_joins_is_known_at_once(site: Site) -> None:
    workers = await site.workers([], [])
    url = await site.engine("decode")
    version = workers.version
    await workers.add("decode", url)
    worker = only(workers)
    assert (worker.available, worker.name, worker.headers) == (True, url, ())
    assert worker.reuse
    assert workers.find(url) is worker
    assert workers.version > version


async def test_engine_that_joins_dead_is_found_when_it_lives(site: Site, settled: Settled) -> None:
    workers = await site.workers([], [])
    url = await site.engine("decode")
    await site.kill(url)
    await workers.add("decode", url)
    assert not only(workers).healthy
    await site.revive(url)
    await settled(lambda: only(workers).available)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_engine_that_is_there_already_is_refused(site: Site, role: Role) -> None:
    workers = await site.workers([], ["http://d:8000"], start=False)
    for url in ("http://d:8000", "http://d:8000/", "http://D:8000"):
        with pytest.raises(DuplicateEngineError, match="name each engine once"):
            await workers.add(role, url)
    assert len(list(workers)) == 1


async def test_engine_named_twice_at_the_start_is_refused(site: Site) -> None:
    with pytest.raises(DuplicateEngineError, match="http://d:8000"):
        await site.workers(["http://d:8000"], ["http://d:8000"], start=False)


async def test_no_url_is_refused(site: Site) -> None:
    workers = await site.workers([], [])
    with pytest.raises(ValueError, match="is not http"):
        await workers.add("decode", "d:8000")
    assert list(workers) == []


async def test_engine_that_leaves_is_forgotten(site: Site) -> None:
    url = await site.engine("decode")
    workers = await site.workers([], [url])
    worker = only(workers)
    worker.in_flight = 1
    await workers.remove("decode", url)
    assert (workers.decode, workers.find(url), workers.list()) == ([], None, ())
    assert site.removed == [url]
    worker.in_flight -= 1  # its legs end as they would have
    await workers.add("decode", url)
    assert only(workers).available


async def test_engine_that_left_is_not_probed(site: Site, settled: Settled) -> None:
    kept, gone = await site.engine("decode"), await site.engine("decode")
    workers = await site.workers([], [kept, gone])
    tasks = len(asyncio.all_tasks())
    await workers.remove("decode", gone)
    await settled(lambda: len(asyncio.all_tasks()) < tasks)


async def test_unknown_engine_cannot_be_drained_or_removed(site: Site) -> None:
    workers = await site.workers(["http://p:8000"], ["http://d:8000"], start=False)
    with pytest.raises(UnknownEngineError, match=r"http://d:8000"):
        workers.drain("decode", "http://p:8000")
    with pytest.raises(UnknownEngineError, match="no prefill engine http://x:1"):
        await workers.remove("prefill", "http://x:1")


async def test_draining_engine_keeps_what_it_has_and_gets_no_more(site: Site) -> None:
    url = await site.engine("decode")
    workers = await site.workers([], [url])
    worker = only(workers)
    workers.drain("decode", url)
    assert worker.healthy
    assert worker.state.healthy  # its KV may still be pulled
    assert not worker.available
    assert Placement(workers).decode(KEY, url) is None
    assert workers.list()[0].draining
    workers.undrain("decode", url)
    assert Placement(workers).decode(KEY, url) is worker


async def test_list_tells_what_an_operator_asks(site: Site) -> None:
    url = await site.engine("decode", data_parallel=2)
    workers = await site.workers([], [url])
    workers.decode[1].in_flight = 3
    listed = workers.list()[0]
    assert (listed.role, listed.url, listed.healthy, listed.draining) == ("decode", url, True, False)
    assert (listed.in_flight, listed.workers) == (3, (f"{url}#0", f"{url}#1"))
    assert (listed.model, listed.vllm, listed.breaker) == ("simulated", "0.32.0", BreakerState.CLOSED)


# --- dying and returning ---


async def test_engine_that_dies_and_returns_is_found_again(site: Site, settled: Settled) -> None:
    # https://github.com/ai-dynamo/dynamo/issues/4904
    url = await site.engine("decode")
    workers = await site.workers([], [url])
    worker, epoch = only(workers), only(workers).epoch
    await site.kill(url)
    await settled(lambda: not worker.healthy)
    await site.revive(url)
    await settled(lambda: worker.available and worker.epoch != epoch)
    assert site.lives == [(url, epoch), (url, worker.epoch)]
    assert workers.find(url) is worker


async def test_router_that_restarts_finds_its_engines(site: Site) -> None:
    url = await site.engine("decode")
    first = await site.workers([], [url])
    epoch = only(first).epoch
    await first.stop()
    second = await site.workers([], [url])
    assert only(second).available
    assert only(second).epoch == epoch
    assert site.lives == [(url, epoch)] * 2  # what it held of the first router's is still there


async def test_new_life_closes_the_breaker(site: Site, settled: Settled) -> None:
    url = await site.engine("decode")
    workers = await site.workers([], [url], breaker=BreakerPolicy(failures=2, pause=3600))
    worker = only(workers)
    worker.failed(0.0)
    worker.failed(0.0)
    site.engines[url].restart()
    await workers.probe(worker)
    assert workers.list()[0].breaker is BreakerState.CLOSED


async def test_return_to_health_allows_a_trial(site: Site, settled: Settled) -> None:
    url = await site.engine("decode", antiphon=False)
    policy = BreakerPolicy(failures=2, pause=3600)
    workers = await site.workers([], [url], breaker=policy, clock=lambda: 0.0)
    worker = only(workers)
    worker.failed(0.0)
    worker.failed(0.0)
    assert worker.healthy
    assert not worker.available
    await site.kill(url)
    await settled(lambda: not worker.healthy)
    await site.revive(url)
    await settled(lambda: worker.available)
    assert workers.list()[0].breaker is BreakerState.HALF_OPEN


async def test_info_in_trouble_does_not_cost_the_frontiers(site: Site, fault: Any) -> None:
    url = await site.engine("decode")
    workers = await site.workers([], [url], interval=3600)
    site.engines[url].faults.add(fault(kind="status", path="/antiphon/info", code=500))
    await workers.probe(only(workers))
    assert only(workers).reuse
    assert len(site.lives) == 1


async def test_callback_that_fails_does_not_end_the_probing(
    site: Site, settled: Settled, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(worker: Worker) -> None:
        raise RuntimeError("the store is down")

    url = await site.engine("decode")
    workers = await site.workers([], [url], restarted=fail)
    with caplog.at_level(logging.CRITICAL):
        for _ in range(2):
            site.engines[url].restart()
            await settled(lambda: only(workers).epoch == site.engines[url].epoch)
    assert only(workers).available


async def test_silent_engine_holds_up_no_other(site: Site, settled: Settled, fault: Any) -> None:
    # https://github.com/vllm-project/production-stack/issues/749
    silent, well = await site.engine("decode"), await site.engine("decode")
    site.engines[silent].faults.add(fault(kind="stall", path="/", times=1000))
    workers = await site.workers([], [silent, well], timeout=60.0, start=False)
    starting = asyncio.create_task(workers.start())
    await settled(lambda: workers.decode[1].available)
    assert not workers.decode[0].healthy
    assert Placement(workers).decode(KEY, silent) is workers.decode[1]
    site.engines[well].restart()
    epoch = site.engines[well].epoch
    await settled(lambda: workers.decode[1].epoch == epoch)
    site.engines[silent].faults.clear()
    await starting
    await settled(lambda: workers.decode[0].available)


async def test_engine_that_drips_its_answer_is_given_up(site: Site, settled: Settled) -> None:
    dripping: set[asyncio.Task[Any] | None] = set()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dripping.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        dripping.discard(asyncio.current_task())

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        workers = await site.workers([], [url], timeout=0.1)
        assert not only(workers).healthy
        await settled(lambda: only(workers).engine.missed >= 2)
        await workers.stop()
        await settled(lambda: not dripping)


async def test_engine_that_cannot_be_asked_harms_nobody(
    site: Site, settled: Settled, caplog: pytest.LogCaptureFixture
) -> None:
    well = await site.engine("decode")
    workers = await site.workers([], [well])
    with caplog.at_level(logging.CRITICAL):
        await workers.add("decode", f"http://{'a' * 70}:8000")  # no such name can be asked for
        odd = workers.decode[1]
        odd.engine.suspected.set()
        await settled(lambda: not odd.engine.suspected.is_set())
        await workers.remove("decode", odd.url)
    assert only(workers).available


# --- data-parallel ranks ---


async def test_ranks_have_names_and_headers_of_their_own(site: Site) -> None:
    url = await site.engine("decode", data_parallel=3)
    workers = await site.workers([], [url])
    assert [w.name for w in workers.decode] == [f"{url}#0", f"{url}#1", f"{url}#2"]
    assert [w.headers for w in workers.decode] == [((RANK_HEADER, str(rank)),) for rank in range(3)]
    assert all(w.available and w.reuse and w.url == url for w in workers.decode)
    assert workers.find(f"{url}#2") is workers.decode[2]
    assert workers.find(url) is None
    assert [name for name, _ in site.lives] == [w.name for w in workers.decode]


async def test_ranks_share_health_and_breaker_but_not_load(site: Site) -> None:
    url = await site.engine("decode", data_parallel=2)
    workers = await site.workers([], [url], clock=lambda: 0.0, breaker=BreakerPolicy(failures=1))
    first, second = workers.decode
    first.in_flight = 5
    assert second.load == 0
    first.failed(0.0)
    assert not second.available
    workers.suspect(second, gone=True)
    assert not first.healthy


async def test_restart_is_told_of_each_rank(site: Site) -> None:
    url = await site.engine("decode", data_parallel=2)
    workers = await site.workers([], [url], interval=3600)
    ranks = workers.decode
    site.lives.clear()
    site.engines[url].restart()
    await workers.probe(ranks[0])
    epoch = site.engines[url].epoch
    assert site.lives == [(f"{url}#0", epoch), (f"{url}#1", epoch)]
    assert all(left is right for left, right in zip(workers.decode, ranks, strict=True))


async def test_engine_that_returns_with_fewer_ranks_loses_them(site: Site) -> None:
    url = await site.engine("decode", data_parallel=3)
    workers = await site.workers([], [url], interval=3600)
    first = workers.decode[0]
    site.lives.clear()
    site.engines[url].settings = Settings(role="decode", data_parallel=2)
    site.engines[url].restart()
    await workers.probe(first)
    assert [w.name for w in workers.decode] == [f"{url}#0", f"{url}#1"]
    assert workers.decode[0] is first
    assert sorted(name for name, _ in site.lives) == [f"{url}#0", f"{url}#1", f"{url}#2"]
    await workers.remove("decode", url)
    assert site.removed == [f"{url}#0", f"{url}#1"]


async def test_engine_of_another_protocol_gets_no_handles_and_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # https://github.com/llm-d/llm-d-router/issues/2140
    info = SimulatedEngine.info
    monkeypatch.setattr(
        SimulatedEngine, "info", lambda engine: msgspec.structs.replace(info(engine), protocol=2)
    )
    url = await site.engine("decode")
    workers = await site.workers([], [url], interval=3600)
    worker = only(workers)
    assert (worker.healthy, worker.stock, worker.reuse) == (True, True, False)
    (told,) = [record for record in caplog.records if record.message == "engine.protocol_differs"]
    assert told.__dict__["protocol"] == 2


def test_one_engine_that_takes_more_than_text_or_does_not_say_is_enough() -> None:
    workers = Workers(["http://p"], ["http://d"], Upstream(Timeouts(1, 1, 1)))
    assert not workers.text_only
    prefill, decode = workers.prefill[0].engine, workers.decode[0].engine
    prefill.info = info(text_only=True)
    assert not workers.text_only
    decode.info = info(text_only=True)
    assert workers.text_only
    decode.info = info(text_only=False)
    assert not workers.text_only
