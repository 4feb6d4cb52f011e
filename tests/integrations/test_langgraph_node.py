"""Nodes with a conversation of their own."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, cast

import pytest

pytest.importorskip("langgraph")

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Send, StreamWriter
from openai import OpenAI

import antiphon
import antiphon_openai
from antiphon.testing import FakeRouter
from antiphon_langgraph import conversation_node
from doubles.agents import State, fan_out, identity, line, thread


def look(state: Any) -> State:
    conversation = antiphon.current()
    return {"seen": [conversation.id if conversation else "none"]}


async def alook(state: State) -> State:
    return look(state)


def steps(state: State) -> Iterator[State]:
    yield look(state)


async def asteps(state: State) -> AsyncIterator[State]:
    yield look(state)


class Looker:
    """A node that is an object."""

    def __call__(self, state: State) -> State:
        return look(state)


class AsyncLooker:
    async def __call__(self, state: State) -> State:
        return look(state)


SYNC = [look, steps, Looker(), partial(look), RunnableLambda(look), line(("inner", look))]
ASYNC = [alook, asteps, AsyncLooker(), partial(alook), RunnableLambda(look, alook), line(("inner", alook))]


@pytest.mark.parametrize("node", SYNC, ids=lambda node: type(node).__name__)
def test_named_node_is_a_child_and_an_unnamed_one_its_graphs_conversation(node: Any) -> None:
    for name, expected in (("critic", "T/critic"), (None, "T")):
        graph = line(("node", conversation_node(node, name=name)))
        assert [graph.invoke({}, thread("T"))["seen"] for _ in range(2)] == [[expected]] * 2
        assert graph.invoke({})["seen"] == ["none"]


@pytest.mark.parametrize("node", [*SYNC, *ASYNC], ids=lambda node: type(node).__name__)
async def test_nodes_of_async_runs_are_children_too(node: Any) -> None:
    for name, expected in (("critic", "T/critic"), (None, "T")):
        graph = line(("node", conversation_node(node, name=name)))
        assert (await graph.ainvoke({}, thread("T")))["seen"] == [expected]
        assert (await graph.ainvoke({}))["seen"] == ["none"]


def test_decorator_needs_no_brackets() -> None:
    @conversation_node
    def bare(state: State) -> State:
        return look(state)

    @conversation_node()
    def brackets(state: State) -> State:
        return look(state)

    @conversation_node(name="own")
    def named(state: State) -> State:
        return look(state)

    graph = StateGraph(State).add_sequence([bare, brackets, named]).add_edge(START, "bare").compile()
    assert graph.invoke({}, thread("T"))["seen"] == ["T", "T", "T/own"]


def test_what_langgraph_injects_still_comes() -> None:
    @conversation_node(name="own")
    def node(
        state: State, config: RunnableConfig, runtime: Runtime[None], store: BaseStore, writer: StreamWriter
    ) -> State:
        writer(config["configurable"]["thread_id"])
        assert runtime.store is store
        return look(state)

    builder: Any = StateGraph(State)  # its types know no node that asks for so much
    graph = builder.add_node(node).add_edge(START, "node").compile(store=InMemoryStore())
    modes = list(graph.stream({}, thread("T"), stream_mode=["custom", "updates"]))
    assert modes == [("custom", "T"), ("updates", {"node": {"seen": ["T/own"]}})]


def test_decorated_nodes_keep_kind_name_and_signature() -> None:
    functions: list[Any] = [look, alook, steps, asteps]
    for node in functions:
        wrapped = conversation_node(node)
        assert wrapped.__name__ == node.__name__
        assert inspect.signature(wrapped) == inspect.signature(node)
        for kind in ("iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction"):
            assert getattr(inspect, kind)(wrapped) == getattr(inspect, kind)(node)
    graph = StateGraph(State)
    objects: list[Any] = [Looker(), partial(look), RunnableLambda(look, name="lambda"), line(("inner", look))]
    for node in objects:
        graph.add_node(conversation_node(node))
    assert list(graph.nodes) == ["Looker", "partial", "lambda", "LangGraph"]
    assert inspect.signature(conversation_node(Looker())) == inspect.signature(Looker())


def test_graph_in_a_node_keeps_its_conversation_over_runs_and_its_state_in_sight() -> None:
    def deep(state: State) -> State:
        return line(("deeper", look)).invoke({})  # type: ignore[no-any-return]

    inner = line(("one", look), ("two", deep))
    graph = line(("sub", conversation_node(inner, name="researcher")), checkpointer=InMemorySaver())
    graph.invoke({}, thread("T"))
    assert graph.invoke({}, thread("T"))["seen"][-2:] == ["T/researcher"] * 2
    assert dict(graph.get_subgraphs()).keys() == {"sub"}


def test_decorated_node_that_invokes_a_graph_keeps_it_in_sight() -> None:
    inner = line(("one", look))

    @conversation_node(name="researcher")
    def sub(state: State) -> State:
        return inner.invoke(state)  # type: ignore[no-any-return]

    graph = line(("sub", sub), checkpointer=InMemorySaver())
    assert graph.invoke({}, thread("T"))["seen"] == ["T/researcher"]
    assert dict(graph.get_subgraphs()).keys() == {"sub"}


def test_sends_to_a_decorated_graph_are_told_apart_and_come_back() -> None:
    graph = fan_out(
        conversation_node(line(("inner", look))),
        lambda _: [Send("work", {})] * 2,
        checkpointer=InMemorySaver(),
    )
    graph.invoke({}, thread("T"))
    assert sorted(graph.invoke({}, thread("T"))["seen"]) == sorted(["T/work#0", "T/work#1"] * 2)


def test_tasks_can_be_decorated() -> None:
    @task
    @conversation_node(name="step")
    def step(number: int) -> tuple[int, str]:
        conversation = antiphon.current()
        assert conversation is not None
        return number, conversation.id

    @entrypoint()
    def agent(rounds: int) -> list[Any]:
        return [step(number).result() for number in range(rounds)]

    assert agent.invoke(2, thread("T")) == [(0, "T/step"), (1, "T/step")]


def test_generator_leaks_its_conversation_into_nobody() -> None:
    @conversation_node(name="own")
    def node(state: State) -> Iterator[State]:
        yield look(state)
        yield look(state)

    with antiphon.conversation("c", keep=True):
        stepping = node({})
        assert next(stepping)["seen"] == ["c/own"]
        assert look({})["seen"] == ["c"]
        assert next(stepping)["seen"] == ["c/own"]
        stepping.close()  # type: ignore[attr-defined]


async def test_async_generator_closes_with_its_consumer() -> None:
    closed: list[str] = []

    @conversation_node(name="own")
    async def node(state: State) -> AsyncIterator[State]:
        try:
            yield look(state)
        finally:
            closed.extend(look(state)["seen"])

    with antiphon.conversation("c", keep=True):
        stepping: Any = node({})
        assert (await anext(stepping))["seen"] == ["c/own"]
        assert look({})["seen"] == ["c"]
        await stepping.aclose()
    assert closed == ["c/own"]


def test_leaving_a_node_ends_nothing_for_it_comes_back(antiphon_router: FakeRouter) -> None:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        antiphon_openai.wrap(client)

        @conversation_node(name="critic")
        def node(state: State) -> State:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
            return {}

        line(("node", node)).invoke({}, thread("T"))
    assert [identity(call) for call in antiphon_router.calls()] == ["T/critic"]
    assert antiphon_router.ends() == []


def test_errors_pass_and_leave_no_block_open() -> None:
    @conversation_node(name="own")
    def node(state: State) -> State:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        line(("node", node)).invoke({}, thread("T"))
    assert antiphon.current() is None


def test_name_in_the_place_of_the_node_is_refused_at_once() -> None:
    with pytest.raises(antiphon.ClientError, match="'critic' is no node: pass a function or a Runnable, and"):
        conversation_node(cast("Any", "critic"))


def test_empty_name_is_refused_at_once() -> None:
    with pytest.raises(antiphon.ConversationError, match="empty name"):
        conversation_node(name="")
