"""An agent with tools, on the plain OpenAI client.

    python examples/openai_tools.py --base-url http://localhost:8000/v1

Two lines make it a conversation for the router: ``wrap`` the client, open a ``conversation``. Every call in
the loop then says where it belongs, so that each turn starts from the KV of the last one; leaving the block
frees it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

from openai import OpenAI

import antiphon
import antiphon_openai

SHELF = {"bolts": (240, 0.12), "brackets": (36, 1.80), "hinges": (12, 2.45)}


def stock(item: str) -> str:
    """How many pieces of an item are on the shelf."""
    return json.dumps({"item": item, "pieces": SHELF[item][0]})


def price(item: str) -> str:
    """Price of one piece of an item, in euros."""
    return json.dumps({"item": item, "euros": SHELF[item][1]})


TOOLS: dict[str, Callable[[str], str]] = {"stock": stock, "price": price}


def schema(tool: Callable[[str], str]) -> Any:
    item = {"type": "string", "enum": list(SHELF)}
    parameters = {"type": "object", "properties": {"item": item}, "required": ["item"]}
    function = {"name": tool.__name__, "description": tool.__doc__, "parameters": parameters}
    return {"type": "function", "function": function}


def answer(name: str, arguments: str) -> str:
    try:
        return TOOLS[name](json.loads(arguments)["item"])
    except (KeyError, TypeError, ValueError) as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def ask(client: OpenAI, model: str, question: str, most_turns: int) -> str:
    """Answer the question in at most so many turns, tools in between."""
    messages: list[Any] = [
        {"role": "system", "content": "You keep the shop's shelf. Look things up with the tools."},
        {"role": "user", "content": question},
    ]
    tools = [schema(tool) for tool in TOOLS.values()]
    for turn in range(most_turns):
        last = turn == most_turns - 1
        reply = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=tools,
            tool_choice="none" if last else "auto",
            max_tokens=200,
            temperature=0,
        )
        message = reply.choices[0].message
        # Sent back exactly as it came: what is rewritten here cannot be reused by the next turn.
        messages.append(message.to_dict())
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            if call.type == "function":
                result = answer(call.function.name, call.function.arguments)
                print(f"turn {turn + 1}: {call.function.name}({call.function.arguments}) -> {result}")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def main() -> None:
    arguments = argparse.ArgumentParser(description="An agent with tools, on the plain OpenAI client.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    arguments.add_argument("--turns", type=int, default=6)
    arguments.add_argument("question", nargs="?", default="What are all hinges on the shelf worth?")
    given = arguments.parse_args()

    key = os.environ.get("OPENAI_API_KEY", "none")
    with OpenAI(base_url=given.base_url, api_key=key) as client, antiphon.conversation():
        antiphon_openai.wrap(client)
        model = given.model or client.models.list().data[0].id
        print(ask(client, model, given.question, given.turns))


if __name__ == "__main__":
    main()
