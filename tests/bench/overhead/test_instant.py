"""The engines that answer at once, on sockets: what they serve, and the faults that have to be seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import httpx
import msgspec
import pytest

from antiphon_server.bench.overhead.connection import ReplyError
from antiphon_server.bench.overhead.instant import Connection, Engines, Orders
from antiphon_server.bench.overhead.load import Load, Naming
from antiphon_server.bench.overhead.replies import answer
from antiphon_server.bench.overhead.request import PATH, Body
from antiphon_server.bench.overhead.streams import Crowd, crowd, delays, disordered, gaps, lost
from antiphon_server.protocol import PROMPT_HEADER, PROTOCOL_HEADER, Info, LeaseReply, read_prompt, seal_of

CHUNKS = 8


@dataclass(frozen=True)
class Rig:
    engines: Engines
    prefill: str
    decode: str

    async def crowd(self, streams: int, **orders: object) -> Crowd:
        self.engines.give(msgspec.convert({"interval": 0.001, "hold": streams, **orders}, Orders))
        return await crowd(self.decode, streams, CHUNKS, size=500, limit=20.0, began=lambda: None)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    loop, engines = asyncio.get_running_loop(), Engines()
    ends: list[asyncio.Future[None]] = []

    class Watched(Connection):
        def __init__(self, role: str) -> None:
            super().__init__(engines, role)
            ends.append(loop.create_future())
            self.end = ends[-1]

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.end.set_result(None)

    servers = [
        await loop.create_server(partial(Watched, role), "127.0.0.1", 0) for role in ("prefill", "decode")
    ]
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    yield Rig(engines, *urls)
    async with asyncio.timeout(20):
        await asyncio.gather(*ends)
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("size", [500, 2_000, 64_000, 480_000])
def test_a_body_has_the_wanted_size(size: int) -> None:
    data = Body(size, stream=True).encoded()
    assert 0.95 * size <= len(data) <= size
    messages = msgspec.json.decode(data)["messages"]
    assert messages[-1]["role"] == "user"
    assert len(messages) >= min(size // 3_000, 100)


async def test_prefill_fills_and_seals_for_who_speaks_the_protocol(rig: Rig, http: httpx.AsyncClient) -> None:
    body = {"user": "tokens=300", "return_token_ids": True, "kv_transfer_params": {"do_remote_decode": True}}
    reply = await http.post(rig.prefill + PATH, json=body, headers={PROTOCOL_HEADER: "1"})
    filled = reply.json()
    assert len(filled["prompt_token_ids"]) == 300
    seal = seal_of(filled["kv_transfer_params"])
    assert seal is not None
    assert (seal.tokens, seal.matched) == (300, 0)
    again = await http.post(rig.prefill + PATH, json=body)
    assert seal_of(again.json()["kv_transfer_params"]) is None
    ids = [each.json()["kv_transfer_params"]["remote_request_id"] for each in (reply, again)]
    assert ids[0] != ids[1]


async def test_decode_keeps_what_it_is_told_to_keep(rig: Rig, http: httpx.AsyncClient) -> None:
    ours = {PROTOCOL_HEADER: "1"}
    plain = await http.post(rig.decode + PATH, json={"user": "tokens=300"}, headers=ours)
    assert plain.json()["kv_transfer_params"] is None
    prompt = read_prompt(plain.headers[PROMPT_HEADER])
    assert prompt is not None
    assert prompt.tokens == 300
    kept = await http.post(
        rig.decode + PATH, json={"user": "tokens=300", "kv_transfer_params": {}}, headers=ours
    )
    seal = seal_of(kept.json()["kv_transfer_params"])
    assert seal is not None
    assert seal.tokens == 316


async def test_engines_say_what_routers_ask(rig: Rig, http: httpx.AsyncClient) -> None:
    for url, role in ((rig.prefill, "prefill"), (rig.decode, "decode")):
        info = msgspec.json.decode((await http.get(f"{url}/antiphon/info")).content, type=Info)
        assert info.role == role
    request = {"renew": [{"id": "a", "ttl": 60.0}], "release": ["b"]}
    reply = await http.post(f"{rig.decode}/antiphon/leases", json=request)
    assert set(msgspec.json.decode(reply.content, type=LeaseReply).leases) == {"a", "b"}
    assert (await http.get(f"{rig.decode}/nowhere")).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_load_counts_what_was_served(rig: Rig, stream: bool) -> None:
    load = Load(rig.decode, Naming.NONE)
    burst = await load.burst(Body(2_000, stream), 4, 0.0, least=5)
    load.drop()
    assert (burst.count, rig.engines.counts.decode) == (20, 20)
    assert burst.paths == {"none": 20}
    assert all(0.0 < first <= whole for first, whole in zip(burst.first, burst.whole, strict=True))


UNEXPECTED = {
    "an error": (False, answer(b"{}", status="503 Service Unavailable")),
    "a stream without an end": (True, answer(b"data: {}\n\n", "text/event-stream")),
    "no reply": (False, b""),
    "no HTTP": (False, b"nonsense\r\n\r\n"),
}


@pytest.mark.parametrize(("stream", "reply"), UNEXPECTED.values(), ids=list(UNEXPECTED))
async def test_what_is_no_answer_is_no_measurement(stream: bool, reply: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        load = Load(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Naming.NONE)
        with pytest.raises(ReplyError):
            await load.burst(Body(500, stream), 1, 0.0)
        load.drop()


async def test_nobody_listening_is_no_measurement() -> None:
    load = Load("http://127.0.0.1:9", Naming.NONE)
    with pytest.raises(ReplyError, match="takes no connection"):
        await load.burst(Body(500, stream=False), 1, 0.0)


async def test_streams_come_whole_and_in_order(rig: Rig) -> None:
    seen = await rig.crowd(20)
    assert len(seen.streams) == 20
    assert lost(seen.streams, CHUNKS) == 0
    assert disordered(seen.streams) == 0
    assert len(delays(seen.streams)) == 20 * CHUNKS
    assert len(gaps(seen.streams)) == 20 * (CHUNKS - 1)
    assert min(delays(seen.streams)) > 0.0


async def test_a_lost_chunk_is_seen(rig: Rig) -> None:
    seen = await rig.crowd(3, lose=4)
    assert lost(seen.streams, CHUNKS) == 3


async def test_swapped_chunks_are_seen(rig: Rig) -> None:
    seen = await rig.crowd(3, swap=4)
    assert disordered(seen.streams) == 3
    assert lost(seen.streams, CHUNKS) == 0


async def test_slow_engines_are_seen(rig: Rig) -> None:
    seen = await rig.crowd(2, interval=0.05)
    spaces = gaps(seen.streams)
    assert sum(spaces) / len(spaces) >= 0.04
