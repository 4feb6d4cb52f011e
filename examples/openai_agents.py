"""The OpenAI Agents SDK: an agent with tools, one of which is another agent.

    python examples/openai_agents.py --base-url http://localhost:8000/v1

The model gets a wrapped client, and the session is a conversation. The appraiser is a conversation of its
own, a child of its caller's: two agents that took turns under one id would overwrite each other's KV.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

import antiphon
import antiphon_openai

SHELF = {"bolts": (240, 0.12), "brackets": (36, 1.80), "hinges": (12, 2.45)}
Item = Literal["bolts", "brackets", "hinges"]


@function_tool
def stock(item: Item) -> str:
    """How many pieces of an item are on the shelf."""
    print(f"  stock({item})")
    return json.dumps({"item": item, "pieces": SHELF[item][0]})


@function_tool
def price(item: Item) -> str:
    """Price of one piece of an item, in euros."""
    print(f"    price({item})")
    return json.dumps({"item": item, "euros": SHELF[item][1]})


def shopkeeper(model: OpenAIChatCompletionsModel) -> Agent[Any]:
    """An agent that looks things up, and asks the appraiser for what they are worth."""
    settings = ModelSettings(temperature=0, max_tokens=200)
    appraiser = Agent(
        name="appraiser",
        instructions="Say what an item is worth. Look its price up.",
        model=model,
        model_settings=settings,
        tools=[price],
    )

    @function_tool
    async def appraise(context: ToolContext[Any], item: Item) -> str:
        """What one piece of an item is worth, by the appraiser."""
        print(f"  appraise({item})")
        parent = antiphon.current()
        assert parent is not None
        async with parent.child(context.tool_call_id):
            result = await Runner.run(appraiser, f"What is one of the {item} worth?")
        return str(result.final_output)

    return Agent(
        name="shopkeeper",
        instructions="You keep the shop's shelf. Look things up with the tools.",
        model=model,
        model_settings=settings,
        tools=[stock, appraise],
    )


async def main() -> None:
    arguments = argparse.ArgumentParser(description="An agent of the OpenAI Agents SDK, with a sub-agent.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    arguments.add_argument(
        "questions", nargs="*", default=["What are all hinges on the shelf worth?", "And the bolts?"]
    )
    given = arguments.parse_args()

    set_tracing_disabled(True)  # traces would go to OpenAI
    client = antiphon_openai.wrap(
        AsyncOpenAI(base_url=given.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    )
    async with client, antiphon.conversation() as conversation:
        model = given.model or (await client.models.list()).data[0].id
        agent = shopkeeper(OpenAIChatCompletionsModel(model, client))
        session = SQLiteSession(conversation.id)  # in memory
        for question in given.questions:
            print(question)
            result = await Runner.run(agent, question, session=session, max_turns=8)
            print(result.final_output)
        told = conversation.statistics  # the shopkeeper's own turns
        print(f"{dict(told.paths)}: {told.matched_tokens} of {told.prompt_tokens} tokens not computed again")


if __name__ == "__main__":
    asyncio.run(main())
