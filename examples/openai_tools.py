"""An agent with tools, on the plain OpenAI client.

    python examples/openai_tools.py --base-url http://localhost:8000/v1

The client is wrapped, so every call of the loop says which conversation it belongs to; leaving the block
frees its KV. The turn keeps the history: the model's messages go back exactly as they came, so that each call
starts from the KV of the last one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from openai import OpenAI

import antiphon
import antiphon_openai

SHELF = {"bolts": (240, 0.12), "brackets": (36, 1.80), "hinges": (12, 2.45)}


def stock(item: str) -> Any:
    """How many pieces of an item are on the shelf."""
    return {"item": item, "pieces": SHELF[item][0]}


def price(item: str) -> Any:
    """Price of one piece of an item, in euros."""
    return {"item": item, "euros": SHELF[item][1]}


TOOLS: dict[str, Callable[..., Any]] = {"stock": stock, "price": price}


def schema(tool: Callable[..., Any]) -> Any:
    item = {"type": "string", "enum": list(SHELF)}
    parameters = {"type": "object", "properties": {"item": item}, "required": ["item"]}
    function = {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}
    return {"type": "function", "function": function}


def run(call: antiphon.ToolCall) -> Any:
    """The tool's result; where the model called it wrongly, what is wrong, so that it can try again."""
    try:
        return TOOLS[call.name](**call.parsed())
    except (KeyError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def ask(client: OpenAI, model: str, turn: antiphon.Turn, most_calls: int) -> str:
    """The model's answer, after at most so many model calls, tools in between."""
    for number in range(1, most_calls + 1):
        reply = client.chat.completions.create(
            model=model,
            messages=turn.messages,
            tools=[schema(tool) for tool in TOOLS.values()],
            tool_choice="auto" if number < most_calls else "none",
            max_tokens=200,
            temperature=0,
        )
        turn.add_reply(reply)
        if not turn.calls:
            break
        for call in turn.calls:
            result = run(call)
            turn.add_tool_result(call.id, result)
            print(f"turn {number}: {call.name}({call.arguments}) -> {result}")
    return reply.choices[0].message.content or ""


def main() -> None:
    arguments = argparse.ArgumentParser(description="An agent with tools, on the plain OpenAI client.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    arguments.add_argument("--turns", type=int, default=6)
    arguments.add_argument("questions", nargs="*", default=["What are all hinges on the shelf worth?"])
    given = arguments.parse_args()

    client = OpenAI(base_url=given.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    with antiphon_openai.wrap(client), antiphon.conversation() as conversation:
        model = given.model or client.models.list().data[0].id
        turn = conversation.turn(
            [{"role": "system", "content": "You keep the shop's shelf. Look things up with the tools."}]
        )
        for question in given.questions:
            turn.add_user(question)
            print(ask(client, model, turn, given.turns))
        told = conversation.statistics
        print(f"{dict(told.paths)}: {told.matched_tokens} of {told.prompt_tokens} tokens not computed again")


if __name__ == "__main__":
    main()
