"""A LangChain agent with tools: ``create_agent``, one middleware, one model class.

    python examples/langgraph_agent.py --base-url http://localhost:8000/v1

The thread is the conversation. ``AntiphonMiddleware`` makes each model call say so, and gives each tool call
a conversation of its own, for agents inside tools. ``chat_openai`` is a ``ChatOpenAI`` that sends the model's
replies back as they came; LangChain writes them anew, and what is written anew may not be reused.
"""

from __future__ import annotations

import argparse
import json
import os
import uuid
from typing import Any, Literal

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from openai import OpenAI

from antiphon_langgraph import AntiphonMiddleware, chat_openai, conversation_of

SHELF = {"bolts": (240, 0.12), "brackets": (36, 1.80), "hinges": (12, 2.45)}
Item = Literal["bolts", "brackets", "hinges"]


@tool
def stock(item: Item) -> str:
    """How many pieces of an item are on the shelf."""
    return json.dumps({"item": item, "pieces": SHELF[item][0]})


@tool
def price(item: Item) -> str:
    """Price of one piece of an item, in euros."""
    return json.dumps({"item": item, "euros": SHELF[item][1]})


def show(message: AnyMessage) -> None:
    """What a step of the agent was, and what the router did for it."""
    if isinstance(message, AIMessage):
        print(f"  {message.response_metadata['headers'].get('x-antiphon-reuse', 'no router of ours')}")
        for call in message.tool_calls:
            print(f"  {call['name']}({call['args']})")


def main() -> None:
    arguments = argparse.ArgumentParser(description="A LangChain agent with tools.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    arguments.add_argument(
        "questions", nargs="*", default=["What are all hinges on the shelf worth?", "And the bolts?"]
    )
    given = arguments.parse_args()

    server = {"base_url": given.base_url, "api_key": os.environ.get("OPENAI_API_KEY", "none")}
    model = given.model or OpenAI(**server).models.list().data[0].id
    agent: Any = create_agent(
        chat_openai(**server, model=model, temperature=0, max_tokens=200, include_response_headers=True),
        [stock, price],
        system_prompt="You keep the shop's shelf. Look things up with the tools.",
        middleware=[AntiphonMiddleware()],
        checkpointer=InMemorySaver(),
    )
    thread: RunnableConfig = {"configurable": {"thread_id": str(uuid.uuid4())}, "recursion_limit": 20}
    for question in given.questions:
        print(question)
        asked = {"messages": [{"role": "user", "content": question}]}
        for step in agent.stream(asked, thread, stream_mode="updates"):
            for update in step.values():
                for message in update["messages"]:
                    show(message)
        print(agent.get_state(thread).values["messages"][-1].text)

    conversation = conversation_of(thread)  # a thread may come back, so it ends when you say so
    if conversation is not None:
        conversation.close()


if __name__ == "__main__":
    main()
