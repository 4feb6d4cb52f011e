"""A model that calls the tools that its prompt names, and graphs that say where they run."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.config import get_config
from langgraph.graph import START, StateGraph

from antiphon import Conversation
from antiphon.testing import Recorded
from antiphon_langgraph import conversation_of


def obedient(request: Recorded) -> dict[str, Any]:
    """``call search:c1 read:c2`` from a user calls these tools, with these ids; anything else is answered."""
    last = request.body["messages"][-1]
    words = str(last["content"]).split() if last["role"] == "user" else []
    if words[:1] != ["call"]:
        return {"role": "assistant", "content": "done"}
    calls = [
        {"id": call, "type": "function", "function": {"name": tool, "arguments": json.dumps({"task": call})}}
        for tool, _, call in (word.partition(":") for word in words[1:])
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def asked(call: Recorded) -> str:
    """The first thing that a user said in a model call."""
    return next(str(message["content"]) for message in call.body["messages"] if message["role"] == "user")


def identity(call: Recorded) -> str | None:
    """The conversation that a model call says it belongs to, in its body and in its header."""
    named: str | None = call.body.get("conversation_id")
    assert call.headers.get("x-session-id") == named
    return named


def here() -> Conversation:
    """The conversation of the node that runs this."""
    found = conversation_of(get_config())
    assert found is not None
    return found


class State(TypedDict, total=False):
    round: Annotated[int, lambda _, new: new]
    seen: Annotated[list[str], operator.add]
    text: str


def node_that_sees(state: State) -> State:
    return {"seen": [here().id]}


def line(*nodes: tuple[str, Any], checkpointer: Any = None) -> Any:
    """A compiled graph of nodes, one after the other."""
    graph = StateGraph(State)
    graph.add_sequence(list(nodes))
    graph.add_edge(START, nodes[0][0])
    return graph.compile(checkpointer=checkpointer)


def thread(name: object, **configurable: Any) -> Any:
    return {"configurable": {"thread_id": name, **configurable}}


Route = Callable[[State], list[Any]]


def fan_out(node: Any, route: Route, *, name: str = "work", checkpointer: Any = None) -> Any:
    """A compiled graph that starts with a ``Send`` for each branch of ``route``."""
    graph = StateGraph(State)
    graph.add_node(name, node)
    graph.add_conditional_edges(START, route, [name])
    return graph.compile(checkpointer=checkpointer)
