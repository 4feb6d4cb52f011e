"""A graph of several agents: a fan-out, a writer and a critic.

    python examples/langgraph_graph.py --base-url http://localhost:8000/v1

Prompts that grow apart are conversations of their own, else they overwrite each other's KV. What ``Send``
starts is one by itself (``<thread>/appraise#0``, ...). The critic's history is another than the writer's, so
its node says ``@conversation_node(name="critic")``. The writer's is the thread.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import uuid
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Send
from openai import OpenAI

from antiphon_langgraph import VerbatimChatOpenAI, chat_openai, conversation_node, conversation_of

SHELF = {"bolts": (240, 0.12), "brackets": (36, 1.80), "hinges": (12, 2.45)}
Item = Literal["bolts", "brackets", "hinges"]
ROUNDS = 2


class Task(TypedDict):
    item: str


class State(TypedDict):
    """``worth``: of each item. ``writing``, ``criticism``: the histories of two agents."""

    worth: Annotated[list[str], operator.add]
    writing: Annotated[list[AnyMessage], add_messages]
    criticism: Annotated[list[AnyMessage], add_messages]


@tool
def stock(item: Item) -> str:
    """How many pieces of an item are on the shelf."""
    return json.dumps({"item": item, "pieces": SHELF[item][0]})


@tool
def price(item: Item) -> str:
    """Price of one piece of an item, in euros."""
    return json.dumps({"item": item, "euros": SHELF[item][1]})


TOOLS = {"stock": stock, "price": price}


def told(who: str, reply: AnyMessage) -> None:
    print(f"{who}: {reply.response_metadata['headers'].get('x-antiphon-reuse', 'no router of ours')}")


def graph(model: VerbatimChatOpenAI) -> Any:
    """Appraise all items at once, write a report, have it criticised, write it again."""

    def fan_out(state: State) -> list[Send]:
        return [Send("appraise", Task(item=item)) for item in SHELF]

    def appraise(state: Task) -> dict[str, Any]:
        item = state["item"]
        messages: list[AnyMessage] = [HumanMessage(f"What are all {item} on the shelf worth? Look it up.")]
        for _ in range(4):
            reply = model.bind_tools(list(TOOLS.values())).invoke(messages)
            told(f"appraise {item}", reply)
            messages.append(reply)
            if not reply.tool_calls:
                break
            messages += [TOOLS[call["name"]].invoke(call) for call in reply.tool_calls]
        return {"worth": [f"{item}: {reply.text}"]}

    def write(state: State) -> dict[str, Any]:
        if state["criticism"]:
            asked = HumanMessage(f"Write it again. The critic says: {state['criticism'][-1].text}")
        else:
            asked = HumanMessage(f"Write a report of what the shelf is worth. {'; '.join(state['worth'])}")
        reply = model.invoke([*state["writing"], asked])
        told("write", reply)
        return {"writing": [asked, reply]}

    @conversation_node(name="critic")
    def criticise(state: State) -> dict[str, Any]:
        asked = HumanMessage(f"What is missing in this report? {state['writing'][-1].text}")
        reply = model.invoke([SystemMessage("You are strict."), *state["criticism"], asked])
        told("criticise", reply)
        return {"criticism": [asked, reply]}

    def again(state: State) -> str:
        return "criticise" if len(state["writing"]) < 2 * ROUNDS else END

    building = StateGraph(State)
    building.add_node("appraise", appraise)
    building.add_node("write", write)
    building.add_node("criticise", criticise)
    building.add_conditional_edges(START, fan_out, ["appraise"])
    building.add_edge("appraise", "write")
    building.add_conditional_edges("write", again, ["criticise", END])
    building.add_edge("criticise", "write")
    return building.compile(checkpointer=InMemorySaver())


def main() -> None:
    arguments = argparse.ArgumentParser(description="A graph of several agents.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    given = arguments.parse_args()

    server = {"base_url": given.base_url, "api_key": os.environ.get("OPENAI_API_KEY", "none")}
    name = given.model or OpenAI(**server).models.list().data[0].id
    model = chat_openai(**server, model=name, temperature=0, max_tokens=200, include_response_headers=True)
    thread: RunnableConfig = {"configurable": {"thread_id": str(uuid.uuid4())}}
    print(graph(model).invoke({}, thread)["writing"][-1].text)

    conversation = conversation_of(thread)  # its branches end with it
    if conversation is not None:
        conversation.close()


if __name__ == "__main__":
    main()
