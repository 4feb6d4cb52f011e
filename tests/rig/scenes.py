"""Second turns as agents really send them: the first turn, and what becomes of its history."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rig.answers import Answer, Messages

Message = dict[str, Any]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Zürich", "Genève"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
OTHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}},
}
FORCED = {"type": "function", "function": {"name": "weather"}}


def system(text: str = "You are a careful assistant. Answer in one line.") -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def tool_result(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


LONG = " ".join(f"item {n} costs {n * 7 % 90} francs;" for n in range(14))
FIRST: Messages = [system(), user(f"Read this list. {LONG} What is dear?")]
NEXT = user("And which one is the cheapest of them all, please?")


@dataclass(frozen=True)
class Scene:
    """``then`` makes the second turn's messages of the first turn's and its answer."""

    name: str
    then: Callable[[Messages, Answer], Messages]
    first: Messages = field(default_factory=lambda: FIRST)
    tools: tuple[Any, ...] = ()
    forced: bool = False
    tools_then: tuple[Any, ...] | None = None
    keeps: int = 1
    """Least number of blocks that the two turns share, so that no scene passes by reusing nothing."""

    def __str__(self) -> str:
        return self.name


def _append(first: Messages, answer: Answer) -> Messages:
    return [*first, answer.message, NEXT]


def _tool_turn(first: Messages, answer: Answer) -> Messages:
    """The client parses the arguments and writes them again its own way."""
    ((call_id, name, arguments),) = answer.calls
    again = json.dumps(json.loads(arguments), ensure_ascii=True, separators=(",", ":"), indent=1)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": again}}
    assistant = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [*first, assistant, tool_result(call_id, '{"sky": "clear", "degrees": 21}')]


def _reasoned(first: Messages, answer: Answer) -> Messages:
    """What a reasoning model's client does: the first part of the answer was thought and is not sent."""
    return [*first, {"role": "assistant", "content": answer.text[20:]}, NEXT]


def _regenerated(first: Messages, answer: Answer) -> Messages:
    text = answer.text[:40] + "another end, sampled anew: " + answer.text[::-1]
    return [*first, {"role": "assistant", "content": text}, NEXT]


def _edited(first: Messages, answer: Answer) -> Messages:
    edited = user(str(first[1]["content"]).replace("item 6 costs", "item 6 cost "))
    return [first[0], edited, answer.message, NEXT]


def _truncated(first: Messages, answer: Answer) -> Messages:
    *before, result = first
    cut = {**result, "content": str(result["content"])[:150] + " [truncated]"}
    return [*before, cut, answer.message, NEXT]


def _other_system(first: Messages, answer: Answer) -> Messages:
    return [
        system("You are a careful assistant. Answer in one line. Be brief."),
        *first[1:],
        answer.message,
        NEXT,
    ]


def _compacted(first: Messages, answer: Answer) -> Messages:
    return [first[0], user("Summary so far: a list of items was read and rated. " * 4), NEXT]


def _shorter(first: Messages, answer: Answer) -> Messages:
    return [first[0], user(str(first[1]["content"])[:200])]


WITH_RESULT: Messages = [
    system(),
    user("How is the weather?"),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Zürich"}'},
            }
        ],
    },
    tool_result("call-1", "Report: " + LONG),
]
WITH_REASONING: Messages = [
    *FIRST,
    {"role": "assistant", "content": "Item 13.", "reasoning": "I look for the highest price. " * 4},
    user("Are you sure?"),
]


def _dropped_reasoning(first: Messages, answer: Answer) -> Messages:
    spoken = {key: value for key, value in first[2].items() if key != "reasoning"}
    return [*first[:2], spoken, first[3], answer.message, NEXT]


SCENES = [
    Scene("append", _append, keeps=15),
    Scene(
        "append after a tool call, arguments re-serialised", _tool_turn, tools=(TOOL,), forced=True, keeps=20
    ),
    Scene("reasoning of the answer dropped", _reasoned, keeps=13),
    Scene("reasoning in the history dropped", _dropped_reasoning, first=WITH_REASONING, keeps=13),
    Scene("answer regenerated", _regenerated, keeps=13),
    Scene("earlier message edited", _edited, keeps=5),
    Scene("tool result truncated", _truncated, first=WITH_RESULT, tools=(TOOL,), keeps=20),
    Scene("system prompt changed", _other_system, keeps=1),
    Scene("tools list changed", _append, tools=(TOOL,), tools_then=(TOOL, OTHER_TOOL), keeps=5),
    Scene("history compacted to a summary", _compacted, keeps=1),
    Scene("prompt shorter than what decode holds", _shorter, keeps=8),
]
