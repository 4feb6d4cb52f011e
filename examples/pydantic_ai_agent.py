"""Pydantic AI: an agent with tools, over a wrapped client.

    python examples/pydantic_ai_agent.py --base-url http://localhost:8000/v1

The provider takes the client as it is; the conversation surrounds the runs that share a history.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Literal

from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelMessage, ModelSettings, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import antiphon
import antiphon_openai

SHELF = {"bolts": (240, 0.12), "brackets": (36, 1.80), "hinges": (12, 2.45)}
Item = Literal["bolts", "brackets", "hinges"]


def stock(item: Item) -> int:
    """How many pieces of an item are on the shelf."""
    print(f"  stock({item})")
    return SHELF[item][0]


def price(item: Item) -> float:
    """Price of one piece of an item, in euros."""
    print(f"  price({item})")
    return SHELF[item][1]


def shopkeeper(model: str, client: AsyncOpenAI) -> Agent[None, str]:
    return Agent(
        OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client)),
        instructions="You keep the shop's shelf. Look things up with the tools.",
        model_settings=ModelSettings(temperature=0, max_tokens=200),
        tools=[stock, price],
    )


async def main() -> None:
    arguments = argparse.ArgumentParser(description="An agent of Pydantic AI, over a wrapped client.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    arguments.add_argument(
        "questions", nargs="*", default=["What are all hinges on the shelf worth?", "And the bolts?"]
    )
    given = arguments.parse_args()

    client = antiphon_openai.wrap(
        AsyncOpenAI(base_url=given.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    )
    async with client, antiphon.conversation() as conversation:
        model = given.model or (await client.models.list()).data[0].id
        agent = shopkeeper(model, client)
        history: Sequence[ModelMessage] = []
        for question in given.questions:
            print(question)
            result = await agent.run(
                question, message_history=history, usage_limits=UsageLimits(request_limit=8)
            )
            print(result.output)
            history = result.all_messages()
        told = conversation.statistics
        print(f"{dict(told.paths)}: {told.matched_tokens} of {told.prompt_tokens} tokens not computed again")


if __name__ == "__main__":
    asyncio.run(main())
