"""The agent: asks the model, runs the tool that it calls, and asks again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphon_server.bench.timing import Answer
from antiphon_server.demo import tools

SYSTEM = (
    "You are the engineer on call for a shop. Find the cause of an incident with the tools, "
    "one call at a time, then report it in one sentence."
)
QUESTION = "Since 14:02 many customers cannot pay. What is the cause, and what undoes it?"
REPORT = "Now report in plain words, without a tool: the cause is"
SEED = 7
CALL_TOKENS = 128
REPORT_TOKENS = 40
FEWEST_TURNS = 5


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the script. ``tool``: the one that the model has to call; None asks for the report."""

    tool: str | None

    @property
    def name(self) -> str:
        return self.tool or "report"


def script(turns: int) -> tuple[Step, ...]:
    """Which tool comes when. A model this weak would lose its way, so it only chooses the arguments.

    Raises:
        ValueError: fewer than five turns.
    """
    if turns < FEWEST_TURNS:
        raise ValueError(f"{turns} turns are too few to show anything: take {FEWEST_TURNS} or more")
    names = list(tools.TOOLS)
    return (*(Step(names[i % len(names)]) for i in range(turns - 1)), Step(None))


class Agent:
    """One investigation. Equal answers lead to equal requests, byte for byte."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tools = tools.schemas()
        self._messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION},
        ]

    def request(self, step: Step) -> dict[str, Any]:
        """Body of the next model call. Before the report, the user's wish for it goes into the history."""
        if step.tool is None:
            self._messages.append({"role": "user", "content": REPORT})
        choice = {"type": "function", "function": {"name": step.tool}} if step.tool else "none"
        return {
            "model": self._model,
            "messages": list(self._messages),
            "tools": self._tools,
            "tool_choice": choice,
            "temperature": 0,
            "seed": SEED,
            "max_tokens": CALL_TOKENS if step.tool else REPORT_TOKENS,
        }

    def take(self, answer: Answer) -> str | None:
        """Put an answer, as it came, and the result of its tool call into the history; returns the result."""
        if answer.tool is None:
            self._messages.append({"role": "assistant", "content": answer.text})
            return None
        # The server's ids are random: with them, no two investigations would send the same.
        call_id = f"call_{len(self._messages)}"
        function = {"name": answer.tool, "arguments": answer.arguments}
        calls = [{"id": call_id, "type": "function", "function": function}]
        self._messages.append({"role": "assistant", "content": answer.text or None, "tool_calls": calls})
        result = tools.call(answer.tool, answer.arguments)
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
        return result


def shown(answer: Answer) -> str:
    """The answer for people: the call, or the report's text on one line."""
    said = f"{answer.tool}({answer.arguments})" if answer.tool is not None else answer.text
    return " ".join(said.split())


def warm_up(model: str) -> Sequence[dict[str, Any]]:
    """Two short turns that nobody measures: first forward passes, grammar, handshakes both ways."""
    agent = Agent(model)
    first = agent.request(Step("read_config"))
    agent.take(Answer((), "", "read_config", '{"service": "inventory"}'))
    return first, agent.request(Step("read_config"))
