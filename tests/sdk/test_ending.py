from __future__ import annotations

import asyncio
import logging
import socket
import threading
import weakref

import httpx
import pytest

import antiphon
from antiphon import Router
from antiphon._contacts import MOST_CONTACTS, Contacts
from antiphon._ending import ATTEMPTS
from antiphon.testing import FakeRouter

KEY = ("authorization", "Bearer k")


@pytest.fixture
def nowhere() -> Router:
    """A router that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Router(f"http://127.0.0.1:{probe.getsockname()[1]}/v1")


def test_leaving_the_block_ends_the_conversation_once_with_the_clients_credentials(
    antiphon_router: FakeRouter,
) -> None:
    router = Router(antiphon_router.base_url, (KEY,))
    with antiphon.conversation("a") as conversation:
        for _ in range(3):
            conversation.seen_by(router)
        assert antiphon_router.requests == []
    conversation.close()
    assert [(request.method, request.path) for request in antiphon_router.requests] == [
        ("DELETE", "/v1/conversations/a")
    ]
    assert antiphon_router.requests[0].headers["authorization"] == "Bearer k"
    assert antiphon_router.requests[0].headers["x-session-final"] == "true"


async def test_leaving_the_async_block_ends_the_conversation_once(antiphon_router: FakeRouter) -> None:
    async with antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url, (KEY,)))
    await conversation.aclose()
    assert antiphon_router.ends() == ["a"]
    assert antiphon_router.requests[0].headers["authorization"] == "Bearer k"


def test_explicit_conversation_ends_when_closed(antiphon_router: FakeRouter) -> None:
    conversation = antiphon.conversation("a")
    conversation.seen_by(Router(antiphon_router.base_url))
    conversation.close()
    assert antiphon_router.ends() == ["a"]


def test_kept_conversation_outlives_its_block(antiphon_router: FakeRouter) -> None:
    with antiphon.conversation("a", keep=True) as conversation:
        conversation.seen_by(Router(antiphon_router.base_url))
    assert antiphon_router.requests == []
    conversation.close()
    assert antiphon_router.ends() == ["a"]


def test_conversation_ends_when_its_last_block_is_left(antiphon_router: FakeRouter) -> None:
    conversation = antiphon.conversation("a")
    with conversation:
        with conversation:
            conversation.seen_by(Router(antiphon_router.base_url))
        assert antiphon_router.requests == []
    assert antiphon_router.ends() == ["a"]


def test_conversation_that_spoke_again_after_its_end_ends_again(antiphon_router: FakeRouter) -> None:
    conversation = antiphon.conversation("a")
    for _ in range(2):
        with conversation:
            conversation.seen_by(Router(antiphon_router.base_url))
    assert antiphon_router.ends() == ["a"] * 2


def test_id_is_percent_encoded(antiphon_router: FakeRouter) -> None:
    with antiphon.conversation("a/b c?d#e%") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url))
    [end] = antiphon_router.requests
    assert end.path == "/v1/conversations/a%2Fb%20c%3Fd%23e%25"
    assert end.conversation == "a/b c?d#e%"


def test_parent_ends_its_children_and_a_child_only_itself(antiphon_router: FakeRouter) -> None:
    router = Router(antiphon_router.base_url)
    parent = antiphon.conversation("p")
    first, second = parent.child("1"), antiphon.conversation("2", parent=parent)
    deep = second.child("3")
    for conversation in (parent, first, second, deep):
        conversation.seen_by(router)
    first.close()
    assert antiphon_router.ends() == ["p/1"]
    parent.close()
    assert set(antiphon_router.ends()[1:]) == {"p", "2", "2/3"}
    assert len(antiphon_router.requests) == 4


def test_every_router_that_saw_it_is_told_even_when_one_is_away(
    antiphon_router: FakeRouter, nowhere: Router
) -> None:
    with antiphon.conversation("a") as conversation:
        conversation.seen_by(nowhere)
        conversation.seen_by(Router(antiphon_router.base_url))
        conversation.seen_by(Router(antiphon_router.base_url, (KEY,)))
    assert antiphon_router.ends() == ["a"] * 2


def test_failed_end_is_tried_again(antiphon_router: FakeRouter) -> None:
    antiphon_router.statuses.extend([503, 429])
    with antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url))
    assert len(antiphon_router.requests) == 3


def test_tries_are_bounded_and_what_failed_is_logged(
    antiphon_router: FakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    antiphon_router.statuses.extend([500] * 50)
    with antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url))
    assert len(antiphon_router.requests) == ATTEMPTS
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert antiphon_router.base_url in record.getMessage()
    assert "conversation a ended" in record.getMessage()
    assert "HTTP 500" in record.getMessage()


async def test_async_tries_are_bounded_and_logged(
    antiphon_router: FakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    antiphon_router.statuses.extend([500] * 50)
    async with antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url))
    assert len(antiphon_router.requests) == ATTEMPTS
    assert "HTTP 500" in caplog.text


def test_refusal_is_logged_and_not_tried_again(
    antiphon_router: FakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    antiphon_router.statuses.append(401)
    with antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url))
    assert len(antiphon_router.requests) == 1
    assert "HTTP 401" in caplog.text


@pytest.mark.parametrize("status", [404, 405])
def test_router_that_never_knew_it_is_fine(
    antiphon_router: FakeRouter, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    antiphon_router.statuses.append(status)
    with antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url))
    assert len(antiphon_router.requests) == 1
    assert caplog.records == []


def test_router_that_is_away_raises_nothing(nowhere: Router, caplog: pytest.LogCaptureFixture) -> None:
    with antiphon.conversation("a") as conversation:
        conversation.seen_by(nowhere)
    assert nowhere.base_url in caplog.text


async def test_async_router_that_is_away_raises_nothing(
    nowhere: Router, caplog: pytest.LogCaptureFixture
) -> None:
    async with antiphon.conversation("a") as conversation:
        conversation.seen_by(nowhere)
    assert nowhere.base_url in caplog.text


def test_error_of_the_block_comes_through_and_the_conversation_ends(antiphon_router: FakeRouter) -> None:
    conversation = antiphon.conversation("a")
    conversation.seen_by(Router(antiphon_router.base_url))
    with pytest.raises(LookupError), conversation:
        raise LookupError
    assert antiphon_router.ends() == ["a"]


async def test_sync_block_under_a_running_loop_does_not_wait_for_the_router() -> None:
    heard: list[bytes] = []
    answered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        answered.set()

    # This router runs in the very loop that the block is left in: waiting for it here would never end.
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with antiphon.conversation("a") as conversation:
            conversation.seen_by(Router(f"http://127.0.0.1:{port}/v1"))
        await answered.wait()
    assert [head.split(b" HTTP")[0] for head in heard] == [b"DELETE /v1/conversations/a"]
    for thread in threading.enumerate():
        if thread.name == "antiphon-ending":
            thread.join()


def test_open_transport_of_the_client_is_used(antiphon_router: FakeRouter) -> None:
    with httpx.Client(headers={"x-of": "transport"}) as transport, antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url, (), weakref.ref(transport)))
    assert antiphon_router.requests[0].headers["x-of"] == "transport"


async def test_open_async_transport_of_the_client_is_used(antiphon_router: FakeRouter) -> None:
    transport = httpx.AsyncClient(headers={"x-of": "transport"})
    async with transport, antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url, (), weakref.ref(transport)))
    assert antiphon_router.requests[0].headers["x-of"] == "transport"


async def test_transport_of_the_other_flavour_is_left_alone(antiphon_router: FakeRouter) -> None:
    with httpx.Client(headers={"x-of": "transport"}) as transport:
        async with antiphon.conversation("a") as conversation:
            conversation.seen_by(Router(antiphon_router.base_url, (), weakref.ref(transport)))
    assert "x-of" not in antiphon_router.requests[0].headers


def test_closed_or_broken_transport_is_replaced(
    antiphon_router: FakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    closed = httpx.Client()
    closed.close()
    antiphon_router.statuses.extend([503] * (ATTEMPTS - 1))  # a closed one must not cost an attempt
    broken = httpx.Client(mounts={"all://": httpx.MockTransport(lambda request: 1 // 0)})  # type: ignore[arg-type]
    for transport in (closed, broken):
        with antiphon.conversation("a") as conversation:
            conversation.seen_by(Router(antiphon_router.base_url, (), weakref.ref(transport)))
    broken.close()
    assert antiphon_router.ends() == ["a"] * (ATTEMPTS + 1)
    assert caplog.records == []


def test_newest_transport_is_the_one_used(antiphon_router: FakeRouter) -> None:
    old, new = httpx.Client(), httpx.Client(headers={"x-of": "new"})
    with old, new, antiphon.conversation("a") as conversation:
        conversation.seen_by(Router(antiphon_router.base_url, (), weakref.ref(old)))
        conversation.seen_by(Router(antiphon_router.base_url, (), weakref.ref(new)))
    assert [request.headers.get("x-of") for request in antiphon_router.requests] == ["new"]


def test_contacts_are_bounded_and_forget_the_oldest() -> None:
    contacts, router = Contacts(), Router("http://r/v1")
    for number in range(MOST_CONTACTS + 5):
        contacts.note(("p", str(number)), router)
    taken = contacts.take("p")
    assert taken == {router: [str(number) for number in range(5, MOST_CONTACTS + 5)]}
    assert contacts.take("p") == {}


def test_two_threads_that_close_at_once_end_it_once(antiphon_router: FakeRouter) -> None:
    conversation = antiphon.conversation("a")
    conversation.seen_by(Router(antiphon_router.base_url))
    ready = threading.Barrier(4, timeout=20)

    def close() -> None:
        ready.wait()
        conversation.close()

    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert antiphon_router.ends() == ["a"]
