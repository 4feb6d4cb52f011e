"""Trajectories of SWE-agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from antiphon_server.traces.error import UnreadableError
from antiphon_server.traces.formats.format import Format, Reading
from antiphon_server.traces.formats.messages import calls, messages_in
from antiphon_server.traces.number import number
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Call, Conversation, Message

_SENT = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What of a message goes to the model; the rest is the agent's own."""


def fits(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    if isinstance(steps := value.get("trajectory"), list) and steps:
        return isinstance(steps[0], Mapping) and ("observation" in steps[0] or "response" in steps[0])
    history = value.get("history")
    return isinstance(history, list) and messages_in(history) is not None


class Reader:
    """``_elided``: conversations of which only the whole history is known."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._found: list[Conversation] = []
        self._elided = 0

    def add(self, document: Document) -> None:
        value = document.value
        if not fits(value):
            raise UnreadableError('expected {"history": [...]} or {"trajectory": [...]} of SWE-agent')
        name = document.path.name.split(".", 1)[0]
        name = f"{name}-{document.item or document.line}" if document.item or document.line > 1 else name
        steps = [step for step in value.get("trajectory") or () if isinstance(step, Mapping)]
        if steps and all(messages_in(step.get("query")) for step in steps):
            asked = [self._call(messages_in(step["query"]) or [], step) for step in steps]
            self._found.append(Conversation(name, _timed(asked, steps)))
            return
        messages = messages_in(value.get("history"))
        if messages is None:
            raise UnreadableError('expected a "history" of messages, as no step has its "query"')
        self._elided += 1
        self._add_history(name, messages, steps)

    def _add_history(self, name: str, messages: list[Message], steps: list[Mapping[str, Any]]) -> None:
        """One conversation for each agent; the first is the parent of those that it called."""
        agents = list(dict.fromkeys(str(message.get("agent", "")) for message in messages))
        for index, agent in enumerate(agents):
            told = [message for message in messages if str(message.get("agent", "")) == agent]
            own = [_sent(message) for message in told]
            answers = (message for message in told[1:] if message["role"] == "assistant")
            # A demonstration is in the prompt, but its answers were no calls.
            found = [
                call
                for call, answer in zip(calls(own, self._pool), answers, strict=True)
                if not answer.get("is_demo")
            ]
            alone = len(agents) == 1
            if alone and len(steps) == len(found) + 1 and own[-1]["role"] != "assistant":
                found.append(self._call(own, steps[-1]))  # the answer that ended the run
            timed = _timed(found, steps) if alone and len(found) == len(steps) else tuple(found)
            if timed:
                whole = not index
                self._found.append(
                    Conversation(name if whole else f"{name}/{agent}", timed, None if whole else name)
                )

    def _call(self, messages: list[Message], step: Mapping[str, Any]) -> Call:
        """What a step asked and answered."""
        history = self._pool.all([_sent(message) for message in messages])
        said = step.get("response")
        content = said if isinstance(said, str) else str(step.get("thought") or "")
        reply: dict[str, Any] = {"role": "assistant", "content": content}
        if step.get("tool_calls"):
            reply["tool_calls"] = step["tool_calls"]
        held = self._pool.one(reply)
        return Call(self._pool.tokens(history), self._pool.tokens([held]), history=history, reply=held)

    def end(self) -> Reading:
        notes = [
            "the source has no times of calls: gaps are the times that the tools took, where it has these"
        ]
        if self._elided:
            notes.append(
                f"{self._elided} trajectories do not keep their requests: what the agent cut from history "
                "is counted as sent"
            )
        return Reading(self._found, estimated=True, notes=notes if self._found else ())


def _sent(message: Message) -> Message:
    return {name: message[name] for name in _SENT if message.get(name) is not None}


def _timed(found: list[Call], steps: list[Mapping[str, Any]]) -> tuple[Call, ...]:
    """What a step's tool took is the gap before the next call."""
    gaps = [None, *(number(step.get("execution_time")) for step in steps)]
    return tuple(replace(call, gap=gap) for call, gap in zip(found, gaps, strict=False))


FORMAT = Format(
    "swe_agent",
    "SWE-agent's .traj files, one a run",
    "text",
    fits,
    Reader,
)
