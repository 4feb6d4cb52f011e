"""Conversations that end while something else does: a task, the interpreter, a forked process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import anyio
import httpx
import pytest

import antiphon
from antiphon import Router
from antiphon._contacts import Contacts
from antiphon.testing import FakeRouter


def join_ending() -> None:
    for thread in threading.enumerate():
        if thread.name == "antiphon-ending":
            thread.join()


def run(program: str, base_url: str) -> str:
    """What a program of its own writes to stderr."""
    given = f"import antiphon, os, sys\nrouter = antiphon.Router({base_url!r})\n"
    ran = subprocess.run([sys.executable, "-c", given + program], capture_output=True, text=True, check=True)
    return ran.stderr


async def test_scope_that_cancels_all_that_is_awaited_in_it_keeps_no_router_from_being_told(
    antiphon_router: FakeRouter,
) -> None:
    with anyio.CancelScope() as scope:
        async with antiphon.conversation("a") as conversation:
            conversation.seen_by(Router(antiphon_router.base_url))
            scope.cancel()
            await anyio.sleep_forever()
    await asyncio.to_thread(join_ending)
    assert antiphon_router.ends() == ["a"]


async def test_cancelled_end_is_left_to_a_thread_and_the_cancellation_comes_through(
    antiphon_router: FakeRouter,
) -> None:
    asked: list[str] = []
    arrived = asyncio.Event()

    async def hang(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        arrived.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async with httpx.AsyncClient(transport=httpx.MockTransport(hang)) as transport:
        conversation = antiphon.conversation("a")
        conversation.seen_by(Router(antiphon_router.base_url, (), weakref.ref(transport)))
        task = asyncio.create_task(conversation.aclose())
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.to_thread(join_ending)
    assert asked == ["/v1/conversations/a"]
    assert antiphon_router.ends() == ["a"]


def test_interrupt_while_the_router_is_told_comes_through_at_once(antiphon_router: FakeRouter) -> None:
    asked: list[str] = []

    def interrupt(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        raise KeyboardInterrupt

    with httpx.Client(transport=httpx.MockTransport(interrupt)) as transport:
        conversation = antiphon.conversation("a")
        conversation.seen_by(Router(antiphon_router.base_url, (), weakref.ref(transport)))
        with pytest.raises(KeyboardInterrupt):
            conversation.close()
    assert asked == ["/v1/conversations/a"]


async def test_end_for_which_no_thread_can_be_had_is_logged(
    antiphon_router: FakeRouter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    conversation = antiphon.conversation("a")
    conversation.seen_by(Router(antiphon_router.base_url))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        conversation.close()
    assert "can't start new thread" in caplog.text
    assert antiphon_router.ends() == []


def test_generator_left_open_when_the_interpreter_ends_raises_nothing(antiphon_router: FakeRouter) -> None:
    program = """
def events():
    with antiphon.conversation("a") as conversation:
        conversation.seen_by(router)
        yield

left = events()
next(left)
"""
    said = run(program, antiphon_router.base_url)
    assert "Exception ignored" not in said
    assert "conversation a" in said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_process_ends_what_it_began_and_nothing_of_its_parent(antiphon_router: FakeRouter) -> None:
    program = """
with antiphon.conversation("parent") as conversation:
    conversation.seen_by(router)
    child = os.fork()
    if child == 0:
        with antiphon.conversation("child") as own:
            own.seen_by(router)
        sys.exit()
    os.waitpid(child, 0)
    with antiphon.conversation("last") as last:
        last.seen_by(router)
"""
    assert run(program, antiphon_router.base_url) == ""
    assert antiphon_router.ends() == ["child", "last", "parent"]


def test_contacts_of_another_process_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    contacts, router = Contacts(), Router("http://r/v1")
    contacts.note(("a",), router)
    contacts._lock.acquire()  # by a thread that a fork leaves behind
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert contacts.take("a") == {}
    contacts.note(("a",), router)
    assert contacts.take("a") == {router: ["a"]}


def test_end_imports_no_httpx_beside_httpx2(antiphon_router: FakeRouter) -> None:
    """Calls of openai in other threads would fail while it is half imported."""
    pytest.importorskip("httpx2", reason="openai before 3 runs on httpx")
    program = """
import httpx2
with antiphon.conversation("a") as conversation:
    conversation.seen_by(router)
print("httpx" in sys.modules, file=sys.stderr)
"""
    assert run(program, antiphon_router.base_url) == "False\n"
    assert antiphon_router.ends() == ["a"]
