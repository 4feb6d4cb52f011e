"""What a wrapped client learns of its reuse, from our router over simulated engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

import antiphon
import antiphon_openai
from antiphon._divergence import Kind

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string"},
                    "unit": {"type": "string", "enum": ["km", "miles"]},
                },
            },
        },
    }
]
ASK: Any = {"role": "user", "content": "How far is it from Ulm to Bonn? " * 40}


def turn(client: OpenAI, messages: list[Any], *, stream: bool) -> None:
    """A call, and the tool's result if it asks for one."""
    reply: Any = client.chat.completions.create(
        model="simulated", messages=messages, tools=TOOLS, stream=stream
    )
    if stream:
        list(reply)
        return
    message = reply.choices[0].message
    messages.append(message.to_dict())
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": "145 km " * 20}
        for call in message.tool_calls or ()
    ]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the SDK: the router runs in this process too, and logs what it likes."""
    return [record.getMessage() for record in caplog.records if record.name == "antiphon"]


@pytest.mark.parametrize("path", ["reuse", "append"])
def test_rewritten_tool_call_is_told_where_it_is(
    simulated_stack: Callable[..., Any], caplog: pytest.LogCaptureFixture, path: str
) -> None:
    engine = {"tool_turns": 9}
    stack = simulated_stack(prefill=engine, decode=engine, router={"paths": [path]})
    conversation = antiphon.conversation(f"rewritten-{path}", keep=True)
    messages = [ASK]
    with OpenAI(base_url=f"{stack.router}/v1", api_key="k") as client, conversation:
        antiphon_openai.wrap(client)
        for _ in range(4):
            turn(client, messages, stream=False)
        verbatim = conversation.statistics
        assert verbatim.turns == 4
        assert verbatim.paths == {"append": 0, "reuse": 0, "cold": 1, "unknown": 0} | {path: 3}
        assert (verbatim.last_held or 0) - (verbatim.last_matched or 0) <= 16
        assert verbatim.last_prompt is not None
        assert verbatim.reused == verbatim.matched_tokens / verbatim.prompt_tokens > 0.5
        assert verbatim.divergence is None
        assert warnings(caplog) == []

        called = messages[1]["tool_calls"][0]["function"]
        called["arguments"] = json.dumps(json.loads(called["arguments"]), indent=1)
        for _ in range(2):
            turn(client, messages, stream=False)
    found = conversation.statistics.divergence
    assert found is not None
    assert (found.kind, found.index, found.role) == (Kind.ARGUMENTS, 1, "assistant")
    assert found.path == "tool_calls[0].function.arguments"
    [warning] = warnings(caplog)
    assert f"messages[1].{found.path} (assistant) is the same JSON in other text" in warning


def test_streams_are_timed_and_their_answers_deduced(
    simulated_stack: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    stack = simulated_stack(decode={"answer_tokens": 600}, prefill={"answer_tokens": 600})
    conversation = antiphon.conversation("streamed", keep=True)
    answered = {"role": "assistant", "content": "nothing of that"}
    with OpenAI(base_url=f"{stack.router}/v1", api_key="k") as client, conversation:
        antiphon_openai.wrap(client)
        turn(client, [ASK], stream=True)
        turn(client, [ASK, answered, ASK], stream=True)
    found = conversation.statistics
    assert found.turns == len(found.ttfts) == 2
    assert found.last_ttft is not None
    assert 0 < found.last_ttft < 60
    assert found.divergence is not None
    assert (found.divergence.kind, found.divergence.where) == (Kind.ANSWER, "messages[1] (assistant)")
    assert len(warnings(caplog)) == 1
