from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from doubles.router import Double, Recorded

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_tools.py"


def shopkeeper(request: Recorded) -> dict[str, Any]:
    """Asks for the stock, then for the price, then answers."""
    results = sum(message["role"] == "tool" for message in request.body["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": "29.40 euros"}
    if results < 2:
        function = {"name": ("stock", "price")[results], "arguments": '{ "item":"hinges" }'}
        call = {"id": f"call-{results}", "type": "function", "function": function}
        # A field that openai does not know, as reasoning models send it.
        message = {"role": "assistant", "content": "", "reasoning_content": "é", "tool_calls": [call]}
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "finish_reason": reason, "message": message}
    return {"id": "1", "created": 1, "model": "m", "object": "chat.completion", "choices": [choice]}


def test_tool_loop_is_one_conversation_and_ends_it(double: Double) -> None:
    double.answer = shopkeeper
    command = [sys.executable, str(EXAMPLE), "--base-url", double.base_url, "--model", "m"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines()[-1] == "29.40 euros"
    calls = double.calls()
    assert len(calls) == 3
    assert len({call.body["conversation_id"] for call in calls}) == 1
    assert len({call.headers["x-turn-id"] for call in calls}) == 3
    assert double.ends() == [f"/v1/conversations/{calls[0].body['conversation_id']}"]


def test_tool_loop_sends_the_assistants_messages_back_as_they_came(double: Double) -> None:
    double.answer = shopkeeper
    command = [sys.executable, str(EXAMPLE), "--base-url", double.base_url, "--model", "m"]
    subprocess.run(command, capture_output=True, text=True, check=True)

    calls = double.calls()
    for before, after in pairwise(calls):
        sent = shopkeeper(before)["choices"][0]["message"]
        assert after.body["messages"][len(before.body["messages"])] == sent
