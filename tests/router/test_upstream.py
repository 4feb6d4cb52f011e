"""The HTTP client against servers that misbehave."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from antiphon_server.router.upstream.connection import (
    HIGH_WATER,
    Connection,
    DisconnectedError,
    TimedOutError,
    TooLargeError,
    UnsentError,
)
from antiphon_server.router.upstream.upstream import Origin, Sending, Timeouts, Upstream

LIMITS = Timeouts(connect=5.0, first=5.0, idle=5.0)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[tuple[Origin, list[int]]]:
    """``handler`` once per request; the list counts requests by connection."""
    connections: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        mine = len(connections) - 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                connections[mine] += 1
                await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield Origin.parse(f"http://127.0.0.1:{port}"), connections


def answers(*parts: bytes, close: bool = False) -> Handler:
    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if close:
            writer.close()

    return handler


@asynccontextmanager
async def client(limits: Timeouts = LIMITS, keep_alive: float = 3.0) -> AsyncIterator[Upstream]:
    upstream = Upstream(limits, keep_alive=keep_alive)
    try:
        yield upstream
    finally:
        await upstream.close()


async def fetch(upstream: Upstream, origin: Origin, *, repeat: bool = False) -> bytes:
    response = await upstream.send(origin, "POST", "/x", body=b"{}", repeat=repeat)
    return await response.read(1000)


async def test_connections_are_kept_alive() -> None:
    async with server(answers(OK)) as (origin, connections), client() as upstream:
        assert [await fetch(upstream, origin) for _ in range(3)] == [b"ok"] * 3
        assert connections == [3]


async def test_idle_connections_expire() -> None:
    async with server(answers(OK)) as (origin, connections), client(keep_alive=0.0) as upstream:
        await fetch(upstream, origin)
        await fetch(upstream, origin)
        assert connections == [1, 1]


async def test_chunked_bodies_and_interim_replies() -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with (
        server(answers(head, b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n")) as (origin, _),
        client() as upstream,
    ):
        assert await fetch(upstream, origin) == b"abcde"


async def test_body_without_length_ends_with_its_connection() -> None:
    async with (
        server(answers(b"HTTP/1.1 200 OK\r\n\r\nabc", close=True)) as (origin, _),
        client() as upstream,
    ):
        assert await fetch(upstream, origin) == b"abc"


async def test_body_without_length_that_is_reset_is_disconnected() -> None:
    async def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nabc")
        await asyncio.sleep(0.05)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    async with server(reset) as (origin, _), client() as upstream:
        with pytest.raises(DisconnectedError):
            await fetch(upstream, origin)


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno", b"HTTP/1.1 408 "])
async def test_what_comes_after_a_reply_is_nobodys(more: bytes) -> None:
    async with server(answers(OK + more)) as (origin, connections), client() as upstream:
        for _ in range(3):
            response = await upstream.send(origin, "POST", "/x", body=b"{}", repeat=True)
            assert (response.status, await response.read(1000)) == (200, b"ok")
        assert len(connections) > 1


async def test_refused_connection_is_unsent() -> None:
    async with server(answers(OK)) as (origin, _):
        pass
    async with client() as upstream:
        with pytest.raises(UnsentError):
            await fetch(upstream, origin)


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Len",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"nonsense\r\n\r\n",
    ],
)
async def test_broken_reply_is_disconnected(part: bytes) -> None:
    async with server(answers(part, close=True)) as (origin, _), client() as upstream:
        with pytest.raises(DisconnectedError):
            await fetch(upstream, origin)


@pytest.mark.parametrize("repeat", [False, True])
async def test_stale_connection_is_replaced_only_if_the_request_may_be_repeated(repeat: bool) -> None:
    served = []

    async def once_a_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(1)
        if len(served) == 2:
            writer.close()
            return
        writer.write(OK)

    async with server(once_a_connection) as (origin, connections), client() as upstream:
        await fetch(upstream, origin)
        if repeat:
            assert await fetch(upstream, origin, repeat=True) == b"ok"
            assert connections == [2, 1]
        else:
            with pytest.raises(DisconnectedError) as caught:
                await fetch(upstream, origin)
            assert caught.value.stale


async def test_request_is_repeated_once_however_many_connections_are_stale() -> None:
    together = asyncio.Barrier(2)
    served = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        if served <= 2:
            await together.wait()
            writer.write(OK)
        else:
            writer.close()

    async with server(handler) as (origin, connections), client() as upstream:
        await asyncio.gather(fetch(upstream, origin), fetch(upstream, origin))
        with pytest.raises(DisconnectedError):
            await fetch(upstream, origin, repeat=True)
        assert sorted(connections) == [1, 1, 2]


async def test_silence_times_out() -> None:
    silent = Timeouts(connect=5.0, first=0.05, idle=0.05)
    async with server(answers()) as (origin, _), client(silent) as upstream:
        with pytest.raises(TimedOutError):
            await fetch(upstream, origin)
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"
    async with server(answers(half)) as (origin, _), client(silent) as upstream:
        with pytest.raises(TimedOutError):
            await fetch(upstream, origin)


async def test_large_reply_is_refused() -> None:
    big = b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000
    async with server(answers(big)) as (origin, _), client() as upstream:
        with pytest.raises(TooLargeError):
            await fetch(upstream, origin)


async def test_slow_reader_holds_the_sender_back() -> None:
    size = 64 * 1024 * 1024
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 65536):
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    async with server(pour) as (origin, _), client() as upstream:
        response = await upstream.send(origin, "GET", "/x")
        before = -1
        while before != sent:  # until the sender makes no more progress
            before = sent
            await asyncio.sleep(0.05)
        assert sent < size
        received = 0
        while (chunk := await response.chunk()) is not None:
            received += len(chunk)
        assert received == size


async def test_sink_takes_what_comes_meanwhile_and_no_more_once_it_refused() -> None:
    taken: list[bytes] = []
    go_on = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nab")
        for part in (b"cd", b"no", b"ef"):
            await asyncio.wait_for(go_on.wait(), 5)
            go_on.clear()
            writer.write(part)
            await writer.drain()

    def sink(data: bytes) -> bool:
        go_on.set()
        if data == b"no":
            return False
        taken.append(data)
        return True

    async with server(handler) as (origin, _), client() as upstream:
        response = await upstream.send(origin, "GET", "/x")
        assert await response.chunk(sink) == b"ab"
        go_on.set()
        assert await response.chunk(sink) == b"no"
        assert taken == [b"cd"]
        assert await response.chunk(sink) is None
        assert taken == [b"cd", b"ef"]


async def test_what_comes_behind_a_refused_chunk_stays_behind_it() -> None:
    connection = Connection(asyncio.get_running_loop())
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
    offered: list[bytes] = []

    def refuse(data: bytes) -> bool:
        offered.append(data)
        return False

    waiting = asyncio.create_task(connection.wait(5.0, refuse))
    await asyncio.sleep(0)
    connection.data_received(b"no")
    connection.data_received(b"more")
    await waiting
    assert offered == [b"no"]
    assert connection.take() == b"nomore"


async def test_sink_that_takes_all_keeps_the_sender_going() -> None:
    size = 4 * HIGH_WATER

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        await writer.drain()

    taken = 0

    def sink(data: bytes) -> bool:
        nonlocal taken
        taken += len(data)
        return True

    async with server(pour) as (origin, _), client() as upstream:
        response = await upstream.send(origin, "GET", "/x")
        returned = 0
        while (data := await response.chunk(sink)) is not None:
            returned += len(data)
        assert taken + returned == size


async def test_silence_times_out_while_a_sink_takes_what_comes() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        for _ in range(6):
            await asyncio.sleep(0.1)
            writer.write(b"x")
        await asyncio.sleep(5)

    taken: list[bytes] = []

    def sink(data: bytes) -> bool:
        taken.append(data)
        return True

    async with server(trickle) as (origin, _), client(Timeouts(1.0, 1.0, 0.4)) as upstream:
        response = await upstream.send(origin, "GET", "/x")
        with pytest.raises(TimedOutError):
            await response.chunk(sink)
    assert b"".join(taken) == b"x" * 6


async def test_cancelled_wait_for_a_head_can_be_taken_up_again() -> None:
    go_on = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with server(late) as (origin, connections), client() as upstream:
        request = Sending(upstream, origin, "GET", "/x", headers=(), body=b"", timeouts=LIMITS)
        first = asyncio.create_task(request.reply())
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        go_on.set()
        response = await request.reply()
        assert await response.read(10) == b"ok"
        assert len(connections) == 1


async def test_cancelled_request_drops_its_connection() -> None:
    gone = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()

    async with server(wait) as (origin, _), client() as upstream:
        task = asyncio.create_task(fetch(upstream, origin))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await gone.wait()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://x", "http://", "nccl://host:1", "http://me:hush@host:1"]
)
def test_engine_url_is_checked(url: str) -> None:
    with pytest.raises(ValueError, match="engine URL"):
        Origin.parse(url)


async def test_switched_protocol_is_no_reply() -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
    async with server(answers(switch)) as (origin, _), client() as upstream:
        with pytest.raises(DisconnectedError, match="is not HTTP"):
            await fetch(upstream, origin)


@pytest.mark.parametrize(("repeat", "expected"), [(True, [2]), (False, [1, 1])])
async def test_what_may_not_be_sent_twice_takes_no_connection_that_idled(
    repeat: bool, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon_server.router.upstream.upstream._JUST_NOW", 0.0)
    async with server(answers(OK)) as (origin, connections), client() as upstream:
        await fetch(upstream, origin)
        await fetch(upstream, origin, repeat=repeat)
        assert connections == expected
