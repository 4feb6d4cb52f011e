"""Clients inside a graph find their thread by themselves."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytest.importorskip("langgraph")

from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.types import Send
from openai import AsyncOpenAI, OpenAI

import antiphon
import antiphon_openai
from antiphon import _ambient
from antiphon.testing import FakeRouter
from antiphon_langgraph import conversation_of
from doubles.agents import State, asked, fan_out, identity, line, thread


@pytest.fixture
def client(antiphon_router: FakeRouter) -> Any:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        yield antiphon_openai.wrap(client)


def ask(client: Any, text: str, **options: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}], **options)


def told(antiphon_router: FakeRouter) -> list[tuple[str, str | None]]:
    return sorted((asked(call), identity(call)) for call in antiphon_router.calls())


def test_wrapped_client_in_a_node_is_stamped_with_the_thread(
    antiphon_router: FakeRouter, client: Any
) -> None:
    def work(state: State) -> State:
        ask(client, "whole")
        list(ask(client, "streamed", stream=True))
        return {}

    graph = line(("work", work), checkpointer=InMemorySaver())
    graph.invoke({}, thread("T"))
    list(graph.stream({}, thread("U"), stream_mode="updates"))
    assert told(antiphon_router) == [("streamed", "T"), ("streamed", "U"), ("whole", "T"), ("whole", "U")]
    assert {call.headers.get("x-parent-session-id") for call in antiphon_router.calls()} == {None}
    assert antiphon_router.ends() == []


async def test_async_client_in_a_node_is_stamped_with_the_thread(antiphon_router: FakeRouter) -> None:
    async with AsyncOpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        antiphon_openai.wrap(client)

        async def work(state: State) -> State:
            await ask(client, state["text"])
            await asyncio.create_task(ask(client, state["text"]))
            return {}

        graph = line(("work", work))
        await asyncio.gather(*(graph.ainvoke({"text": name}, thread(name)) for name in "ABC"))
        async for _ in graph.astream({"text": "D"}, thread("D")):
            pass
    assert told(antiphon_router) == [(name, name) for name in "AABBCCDD"]


async def test_sync_node_of_an_async_run_is_stamped(antiphon_router: FakeRouter, client: Any) -> None:
    def work(state: State) -> State:
        ask(client, "T")
        return {}

    await line(("work", work)).ainvoke({}, thread("T"))
    assert told(antiphon_router) == [("T", "T")]


def test_batches_of_threads_and_inside_of_nodes_carry_their_own_ids(
    antiphon_router: FakeRouter, client: Any
) -> None:
    def work(state: State) -> State:
        RunnableLambda(lambda text: ask(client, text)).batch([state["text"]] * 2)
        return {}

    line(("work", work)).batch([{"text": name} for name in "ABC"], [thread(name) for name in "ABC"])
    assert told(antiphon_router) == [(name, name) for name in "AABBCC"]


def test_sends_tasks_and_graphs_inside_are_told_apart(antiphon_router: FakeRouter, client: Any) -> None:
    def branch(state: State) -> State:
        ask(client, state["text"])
        return {}

    fan_out(branch, lambda _: [Send("work", {"text": f"T/work#{i}"}) for i in range(3)]).invoke(
        {}, thread("T")
    )

    @task
    def step(text: str) -> None:
        ask(client, text)

    @entrypoint()
    def agent(text: str) -> None:
        for _ in range(2):
            step(text).result()

    agent.invoke("F", thread("F"))
    line(("sub", line(("leaf", branch)))).invoke({"text": "sub"}, thread("S"))

    *branches, (_, below) = sorted(told(antiphon_router), key=lambda pair: pair[0] == "sub")
    assert branches == [("F", "F"), ("F", "F"), *((f"T/work#{i}", f"T/work#{i}") for i in range(3))]
    assert below is not None
    assert below.startswith("S/sub:")
    parents = {call.headers.get("x-parent-session-id") for call in antiphon_router.calls()}
    assert parents == {None, "T", "S"}


def test_hooked_http_client_in_a_node_is_stamped(antiphon_router: FakeRouter) -> None:
    with antiphon.hook(httpx.Client()) as client:

        def work(state: State) -> State:
            client.post(
                f"{antiphon_router.base_url}/chat/completions", json={"messages": []}
            ).raise_for_status()
            return {}

        line(("work", work)).invoke({}, thread("T"))
    assert [call.headers["x-session-id"] for call in antiphon_router.calls()] == ["T"]


def test_block_in_a_node_wins_and_so_does_what_the_call_says(
    antiphon_router: FakeRouter, client: Any
) -> None:
    def work(state: State) -> State:
        with antiphon.conversation("block", keep=True):
            ask(client, "block")
        ask(client, "said", extra_body={"conversation_id": "said"}, extra_headers={"X-Session-ID": "said"})
        return {}

    line(("work", work)).invoke({}, thread("T"))
    assert told(antiphon_router) == [("block", "block"), ("said", "said")]


def test_conversation_id_in_the_config_wins_over_the_thread(antiphon_router: FakeRouter, client: Any) -> None:
    def work(state: State) -> State:
        ask(client, "C")
        return {}

    line(("work", work)).invoke({}, thread("T", conversation_id="C"))
    assert told(antiphon_router) == [("C", "C")]


def test_nothing_is_stamped_without_a_thread_outside_of_graphs_and_in_foreign_threads(
    antiphon_router: FakeRouter, client: Any
) -> None:
    def work(state: State) -> State:
        ask(client, "none")
        return {}

    def leave(state: State) -> State:
        with ThreadPoolExecutor() as pool:
            pool.submit(ask, client, "none").result()
        stray = threading.Thread(target=ask, args=(client, "none"))
        stray.start()
        stray.join()
        return {}

    ask(client, "none")
    line(("work", work)).invoke({})
    line(("leave", leave)).invoke({}, thread("T"))
    ask(client, "none")
    assert told(antiphon_router) == [("none", None)] * 5


def test_carried_function_takes_the_thread_into_foreign_threads(
    antiphon_router: FakeRouter, client: Any
) -> None:
    def work(state: State) -> State:
        with antiphon.carrying(ThreadPoolExecutor()) as pool:
            pool.submit(ask, client, "T").result()
        return {}

    line(("work", work)).invoke({}, thread("T"))
    assert told(antiphon_router) == [("T", "T")]


def test_ending_a_thread_ends_its_branches_and_no_other_thread(
    antiphon_router: FakeRouter, client: Any
) -> None:
    def branch(state: State) -> State:
        ask(client, "hello")
        return {}

    graph = fan_out(branch, lambda _: [Send("work", {})] * 2)
    graph.invoke({}, thread("ends"))
    graph.invoke({}, thread("stays"))
    conversation = conversation_of(thread("ends"))
    assert conversation is not None
    conversation.close()
    assert sorted(antiphon_router.ends()) == [f"ends/work#{i}" for i in range(2)]
    conversation.close()
    assert len(antiphon_router.ends()) == 2


GRAPH_WITHOUT_ADAPTER = """
import sys, typing
import antiphon
from antiphon import _ambient

assert antiphon.current() is None and "antiphon_langgraph" not in sys.modules
from langgraph.graph import StateGraph, START
seen = []
class State(typing.TypedDict, total=False):
    text: str
def work(state: State) -> State:
    found = antiphon.current()
    seen.append(found and found.id)
    return {}
graph = StateGraph(State).add_node(work).add_edge(START, "work").compile()
graph.invoke({"text": ""}, {"configurable": {"thread_id": "T"}})
print(*seen, len(_ambient._awaited))
print(*sorted({"antiphon_langgraph", "langchain", "langchain_openai"} & set(sys.modules)))
"""


def test_threads_are_found_without_importing_the_adapter() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", GRAPH_WITHOUT_ADAPTER], capture_output=True, text=True, check=True
    )
    found, loaded = ran.stdout.splitlines()
    assert found == "T 0"
    assert loaded == "antiphon_langgraph"


def test_adapter_that_cannot_be_imported_costs_no_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_ambient, "_awaited", {"sys": "no_such_adapter", "no_such_framework": "sys"})
    with caplog.at_level(logging.DEBUG, "antiphon"):
        assert antiphon.current() is None
        assert antiphon.current() is None
    assert _ambient._awaited == {"no_such_framework": "sys"}
    assert caplog.text.count("cannot import no_such_adapter") == 1
