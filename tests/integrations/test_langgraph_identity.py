"""Which conversation code in a graph belongs to, on graphs as LangGraph runs them."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from antiphon import Conversation, ConversationError
from antiphon_langgraph import conversation_of
from doubles.agents import State, fan_out, here, line, node_that_sees, thread

TASK = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def again(state: State) -> State:
    return {"round": state.get("round", 0) + 1, "seen": [here().id]}


def looping(node: Any, name: str = "agent", rounds: int = 3, checkpointer: Any = None) -> Any:
    graph = StateGraph(State)
    graph.add_node(name, node)
    graph.add_edge(START, name)
    graph.add_conditional_edges(name, lambda state: name if state["round"] < rounds else END, [name, END])
    return graph.compile(checkpointer=checkpointer)


def matches(identity: str, pattern: str) -> bool:
    return re.fullmatch(pattern.replace("TASK", TASK).replace("|", r"\|"), identity) is not None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"configurable": {}}, None),
        ({"configurable": None, "metadata": None}, None),
        (thread(None), None),
        (thread(""), None),
        (thread("T"), Conversation("T")),
        (thread(7), Conversation("7")),
        (thread("T", conversation_id="C"), Conversation("C")),
        (thread("T", conversation_id=""), Conversation("T")),
        (thread("T", conversation_id=None), Conversation("T")),
        ({"configurable": {"conversation_id": "C"}}, Conversation("C")),
        (thread("T", conversation_id="C", checkpoint_ns="a:1|b:2"), Conversation("C")),
        (thread("T", checkpoint_ns="", checkpoint_id="x"), Conversation("T")),
        (thread("T", checkpoint_ns="a:1|b:2"), Conversation("T/a:1", "T")),
        (thread("T", checkpoint_ns="a|1|b:2"), Conversation("T/a|1", "T")),
        (thread("T", checkpoint_ns="a:1|b:2|c:3"), Conversation("T/a:1/b:2", "T/a:1")),
        ({**thread("T"), "metadata": {"lc_source": "summarization"}}, Conversation("T/summarization", "T")),
        (
            {**thread("T", conversation_id="C"), "metadata": {"lc_source": "summarization"}},
            Conversation("C/summarization", "C"),
        ),
    ],
)
def test_config_names_the_conversation(config: dict[str, Any], expected: Conversation | None) -> None:
    found = conversation_of(config)
    assert found == expected
    assert found is None or found.keep


def test_what_is_no_config_is_an_error_that_shows_one() -> None:
    with pytest.raises(ConversationError, match="'42' is no RunnableConfig: pass"):
        conversation_of("42")  # type: ignore[arg-type]


def test_every_superstep_and_every_run_of_a_thread_is_one_conversation() -> None:
    graph = looping(again, checkpointer=InMemorySaver())
    assert graph.invoke({"round": 0}, thread("T"))["seen"] == ["T"] * 3
    assert graph.invoke({"round": 0}, thread("T"))["seen"] == ["T"] * 6


def test_threads_need_no_checkpointer() -> None:
    assert looping(again).invoke({}, thread("T"))["seen"] == ["T"] * 3


def test_all_nodes_are_one_conversation_side_by_side_too() -> None:
    graph = StateGraph(State)
    for name in ("first", "left", "right"):
        graph.add_node(name, node_that_sees)
    graph.add_edge(START, "first")
    graph.add_edge("first", "left")
    graph.add_edge("first", "right")
    assert graph.compile().invoke({}, thread("T"))["seen"] == ["T"] * 3


def test_each_send_is_a_child_by_its_place() -> None:
    parents: list[str | None] = []

    def work(_: State) -> State:
        parents.append(here().parent)
        return {"seen": [here().id]}

    graph = fan_out(work, lambda _: [Send("work", {})] * 3, checkpointer=InMemorySaver())
    assert sorted(graph.invoke({}, thread("T"))["seen"]) == ["T/work#0", "T/work#1", "T/work#2"]
    assert parents == ["T"] * 3
    assert sorted(graph.invoke({}, thread("T"))["seen"])[:2] == ["T/work#0"] * 2


def test_conditional_edges_belong_to_the_node_before_them() -> None:
    seen: list[str] = []

    def route(_: State) -> str:
        seen.append(here().id)
        return END

    graph = StateGraph(State)
    graph.add_node("work", node_that_sees)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", route, [END])
    graph.compile().invoke({}, thread("T"))
    assert seen == ["T"]


def test_stateless_graph_in_a_node_is_one_conversation_over_its_loop() -> None:
    inner = looping(again, "think")
    seen = line(("sub", inner), checkpointer=InMemorySaver()).invoke({}, thread("T"))["seen"]
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert matches(seen[0], "T/sub:TASK")


def test_each_invocation_of_a_stateless_graph_is_a_conversation() -> None:
    inner = looping(again, "think", rounds=1)

    def call(state: State) -> State:
        seen = [inner.invoke({})["seen"][0] for _ in range(2)]
        return {"round": state.get("round", 0) + 1, "seen": seen}

    first, second, third, fourth = looping(call, "call", rounds=2).invoke({}, thread("T"))["seen"]
    assert matches(first, "T/call:TASK")
    assert second == f"{first}|1"
    assert matches(third, "T/call:TASK")
    assert third != first
    assert fourth == f"{third}|1"


def test_persistent_graph_in_a_node_is_one_conversation_for_ever() -> None:
    inner = looping(again, "think", rounds=2, checkpointer=True)
    graph = line(("sub", inner), checkpointer=InMemorySaver())
    graph.invoke({"round": 0}, thread("T"))
    seen = graph.invoke({"round": 0}, thread("T"))["seen"]
    assert len(seen) >= 4
    assert set(seen) == {"T/sub"}


def test_graphs_within_graphs_are_children_of_one_another() -> None:
    found: list[Conversation] = []

    def look(_: State) -> State:
        found.append(here())
        return {}

    inner = line(("inner", line(("leaf", look))))
    line(("outer", inner)).invoke({}, thread("T"))
    [conversation] = found
    assert matches(conversation.id, "T/outer:TASK/inner:TASK")
    assert conversation.parent == conversation.id.rpartition("/")[0]


def test_ids_too_long_for_the_wire_are_hashed_the_same_way_each_time() -> None:
    inner = line(("c" * 30, line(("leaf", looping(again, "think")))))
    seen = line(("a" * 30, inner)).invoke({}, thread("T" * 30))["seen"]
    assert len(set(seen)) == 1
    assert matches(seen[0], "[0-9a-f]{64}/leaf:TASK")


def test_each_send_to_a_graph_is_a_conversation() -> None:
    inner = looping(again, "think", rounds=2)
    seen = fan_out(inner, lambda _: [Send("work", {})] * 3).invoke({}, thread("T"))["seen"]
    assert len(seen) == 6
    assert len(set(seen)) == 3
    assert all(matches(identity, "T/work:TASK") for identity in seen)


def test_sends_inside_a_graph_are_children_of_its_conversation() -> None:
    inner = fan_out(node_that_sees, lambda _: [Send("work", {})] * 2)
    seen = sorted(line(("sub", inner)).invoke({}, thread("T"))["seen"])
    assert [identity.rpartition("/")[2] for identity in seen] == ["work#0", "work#1"]
    assert all(matches(identity, "T/sub:TASK/work#[01]") for identity in seen)


def test_tasks_belong_to_their_callers_conversation_however_often_they_are_called() -> None:
    @task
    def deeper() -> str:
        return here().id

    @task
    def step() -> list[str]:
        return [here().id, deeper().result()]

    @entrypoint(checkpointer=InMemorySaver())
    def agent(rounds: int) -> list[list[str]]:
        return [[here().id], *(step().result() for _ in range(rounds))]

    assert agent.invoke(2, thread("T")) == [["T"], ["T", "T"], ["T", "T"]]
    assert agent.invoke(1, thread("T")) == [["T"], ["T", "T"]]


def test_task_of_a_send_belongs_to_the_send() -> None:
    @task
    def step() -> str:
        return here().id

    def work(_: State) -> State:
        return {"seen": [step().result()]}

    graph = fan_out(work, lambda _: [Send("work", {})] * 2)
    assert sorted(graph.invoke({}, thread("T"))["seen"]) == ["T/work#0", "T/work#1"]


def test_graphs_in_parallel_tasks_are_conversations_of_their_own() -> None:
    inner = looping(again, "think", rounds=2)

    @task
    def research() -> list[str]:
        seen: list[str] = inner.invoke({})["seen"]
        return seen

    @entrypoint()
    def agent(_: int) -> list[list[str]]:
        return [future.result() for future in [research(), research()]]

    left, right = agent.invoke(0, thread("T"))
    assert left[0] == left[1] != right[0] == right[1]
    assert matches(left[0], "T/agent:TASK/research:TASK")


def test_interrupted_node_and_graph_keep_their_conversation_when_resumed() -> None:
    seen: list[str] = []

    def doubt(_: State) -> State:
        seen.append(here().id)
        interrupt("sure?")
        seen.append(here().id)
        return {}

    graph = line(("sub", line(("doubt", doubt))), ("top", doubt), checkpointer=InMemorySaver())
    graph.invoke({}, thread("T"))
    graph.invoke(Command(resume=True), thread("T"))
    graph.invoke(Command(resume=True), thread("T"))
    below, above = seen[:3], seen[3:]
    assert matches(below[0], "T/sub:TASK")
    assert below == below[:1] * 3
    assert above == ["T"] * 3


def test_interrupted_sends_keep_their_conversations_when_resumed() -> None:
    seen: list[str] = []

    def doubt(_: State) -> State:
        seen.append(here().id)
        return {"seen": [interrupt("sure?")]}

    graph = fan_out(doubt, lambda _: [Send("work", {})] * 2, checkpointer=InMemorySaver())
    waiting = graph.invoke({}, thread("T"))["__interrupt__"]
    before = sorted(seen)
    graph.invoke(Command(resume={each.id: "yes" for each in waiting}), thread("T"))
    assert before == ["T/work#0", "T/work#1"]
    assert sorted(seen) == sorted(before * 2)


def test_forks_and_replays_stay_in_their_thread() -> None:
    graph = looping(again, checkpointer=InMemorySaver())
    graph.invoke({"round": 0}, thread("T"))
    middle = [state for state in graph.get_state_history(thread("T")) if state.next][1]
    assert graph.invoke(None, middle.config)["seen"] == ["T"] * 3
    forked = graph.update_state(middle.config, {"round": 0}, as_node="agent")
    assert set(graph.invoke(None, forked)["seen"]) == {"T"}


def test_graph_with_a_thread_of_its_own_has_its_own_conversation() -> None:
    inner = looping(again, "think", rounds=1, checkpointer=InMemorySaver())

    def call(_: State) -> State:
        seen: list[str] = inner.invoke({"round": 0}, thread("mine"))["seen"]
        return {"seen": seen}

    graph = line(("call", call), checkpointer=InMemorySaver())
    assert graph.invoke({}, thread("T"))["seen"] == ["mine"]


async def test_async_graphs_have_the_same_conversations() -> None:
    async def look(_: State) -> State:
        return {"seen": [here().id]}

    nodes = fan_out(look, lambda _: [Send("work", {})] * 2)
    assert sorted((await nodes.ainvoke({}, thread("T")))["seen"]) == ["T/work#0", "T/work#1"]
    below = await line(("sub", line(("leaf", look)))).ainvoke({}, thread("T"))
    assert matches(below["seen"][0], "T/sub:TASK")
