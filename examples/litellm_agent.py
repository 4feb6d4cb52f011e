"""LiteLLM: an agent with tools, each call stamped by hand.

    python examples/litellm_agent.py --base-url http://localhost:8000/v1

LiteLLM makes its clients itself, so there is nothing to wrap. A turn keeps the history as it came and says
what the next call must carry; that goes along as ``extra_headers`` and ``extra_body``.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import httpx
import litellm

import antiphon

KEY = os.environ.get("OPENAI_API_KEY", "none")

SHELF = {"bolts": (240, 0.12), "brackets": (36, 1.80), "hinges": (12, 2.45)}


def stock(item: str) -> Any:
    """How many pieces of an item are on the shelf."""
    return {"item": item, "pieces": SHELF[item][0]}


def price(item: str) -> Any:
    """Price of one piece of an item, in euros."""
    return {"item": item, "euros": SHELF[item][1]}


TOOLS = {"stock": stock, "price": price}


def schema(name: str) -> Any:
    item = {"type": "string", "enum": list(SHELF)}
    parameters = {"type": "object", "properties": {"item": item}, "required": ["item"]}
    function = {"name": name, "description": TOOLS[name].__doc__, "parameters": parameters}
    return {"type": "function", "function": function}


def run(call: antiphon.ToolCall) -> Any:
    try:
        return TOOLS[call.name](**call.parsed())
    except (KeyError, TypeError, antiphon.TurnError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def answer(turn: antiphon.Turn, base_url: str, model: str, most_turns: int) -> str:
    """Go on until the model calls no more tools."""
    for _ in range(most_turns):
        stamp = turn.stamp()
        reply: Any = litellm.completion(
            model=f"openai/{model}",
            api_base=base_url,
            api_key=KEY,
            messages=turn.messages,
            tools=[schema(name) for name in TOOLS],
            max_tokens=200,
            temperature=0,
            extra_headers=stamp.headers,
            extra_body=stamp.body,
        )
        print(f"  {reply._hidden_params['additional_headers'].get('llm_provider-x-antiphon-reuse')}")
        turn.add_reply(reply)
        if not turn.calls:
            break
        for call in turn.calls:
            print(f"  {call.name}({call.arguments})")
            turn.add_tool_result(call.id, run(call))
    return reply.choices[0].message.content or ""


def main() -> None:
    arguments = argparse.ArgumentParser(description="An agent on LiteLLM, each call stamped.")
    arguments.add_argument("--base-url", default="http://localhost:8000/v1")
    arguments.add_argument("--model", help="the server's first one if not given")
    arguments.add_argument(
        "questions", nargs="*", default=["What are all hinges on the shelf worth?", "And the bolts?"]
    )
    given = arguments.parse_args()

    model = given.model or httpx.get(f"{given.base_url}/models").raise_for_status().json()["data"][0]["id"]
    with antiphon.conversation() as conversation:
        conversation.seen_by(antiphon.Router(given.base_url, (("Authorization", f"Bearer {KEY}"),)))
        turn = conversation.turn(
            [{"role": "system", "content": "You keep the shop's shelf. Look things up with the tools."}]
        )
        for question in given.questions:
            print(question)
            turn.add_user(question)
            print(answer(turn, given.base_url, model, most_turns=8))


if __name__ == "__main__":
    main()
