"""A conversation's messages so far, with the model's own answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon_server.bench.replay.ruler import Ruler, content_of
from antiphon_server.bench.replay.script import Message, Turn
from antiphon_server.bench.timing import Answer

LEAST = 4
"""Tokens of a new message that are always sent."""


class History:
    """``tool_role``: a tool's result that answers no call of the live answer stays one; else it is sent as
    the user's message, since chat templates refuse it."""

    def __init__(self, ruler: Ruler, *, tool_role: bool = False) -> None:
        self.messages: list[Message] = []
        self._ruler = ruler
        self._tool_role = tool_role
        self._tokens: float | None = None
        """Of all messages, as the server counted them; None: to be estimated."""

    def begin(self, turn: Turn) -> list[Message]:
        """The messages of a turn's request."""
        grows = turn.keeps_messages is None and turn.keeps_tokens is None and bool(self.messages)
        if turn.keeps_messages is not None:
            self._keep(self.messages[: turn.keeps_messages])
        elif turn.keeps_tokens is not None:
            self._keep(_cut(self.messages, turn.keeps_tokens, self._ruler))
        before = self._ruler.prompt(self.messages) if self._tokens is None else self._tokens
        new = self._valid(turn.new)
        if turn.length is not None:
            frames = sum(self._ruler.message(message) for message in new[:-1]) + self._ruler.frame
            room = self._ruler.text(max(LEAST, turn.length - before - frames))
            # Where the live answer stands, the record has its own: then the end is what is new.
            text = new[-1]["content"]
            new[-1] = {**new[-1], "content": text[-room:] if grows else text[:room]}
        self.messages = [*self.messages, *new]
        return _taking_turns(self.messages)

    def end(self, answer: Answer, prompt_tokens: int = 0) -> None:
        """The model has answered. ``prompt_tokens``: as the server counted them, if it did."""
        said: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.tool is not None:
            function = {"name": answer.tool, "arguments": answer.arguments}
            said["tool_calls"] = [
                {"id": f"call_{len(self.messages)}", "type": "function", "function": function}
            ]
        self.messages = [*self.messages, said]
        self._tokens = prompt_tokens + len(answer.ids) if prompt_tokens and answer.ids else None

    def _keep(self, kept: list[Message]) -> None:
        self._tokens = self._tokens if len(kept) == len(self.messages) else None
        self.messages = kept

    def _valid(self, new: Sequence[Message]) -> list[Message]:
        """Results of tools belong to calls: the live answer's, or those that are sent as recorded."""
        open_calls = _calls(self.messages[-1]) if self.messages else []
        found: list[Message] = []
        for message in new:
            if message["role"] == "assistant":
                open_calls = _calls(message)
            if message["role"] == "tool" and not self._tool_role:
                own = message.get("tool_call_id")
                if not open_calls:
                    message = {"role": "user", "content": content_of(message)}
                else:
                    call = own if own in open_calls else open_calls[0]
                    open_calls.remove(call)
                    message = {**message, "tool_call_id": call}
            found.append(message)
        return found


def _calls(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or () if call.get("id")]


def _cut(messages: Sequence[Message], tokens: float, ruler: Ruler) -> list[Message]:
    """The messages that the first so many tokens hold."""
    kept: list[Message] = []
    left = tokens - ruler.head
    for message in messages:
        if left <= ruler.frame:
            break
        whole = ruler.message(message)
        text = ruler.text(left - ruler.frame)
        kept.append(message if whole <= left else _beginning(message, text))
        left -= whole
    return kept


def _beginning(message: Message, characters: int) -> Message:
    return {"role": message["role"], "content": content_of(message)[:characters]}


def _taking_turns(messages: Sequence[Message]) -> list[Message]:
    """Users' messages in a row are one: many templates want users and assistants to take turns."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"] == "user":
            found[-1] = {**message, "content": f"{content_of(found[-1])}\n{content_of(message)}"}
        else:
            found.append(message)
    return found
