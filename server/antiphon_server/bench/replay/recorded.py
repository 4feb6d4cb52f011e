"""Scripts of conversations whose text is known: what was said is said again, but for the model's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.ruler import Ruler, content_of
from antiphon_server.bench.replay.script import Message, Script, Size, Turn, copied
from antiphon_server.traces.text import written
from antiphon_server.traces.trace import Call, Conversation


@dataclass(frozen=True, slots=True)
class Recorded:
    """``tools``: requests bring the record's tools, where they need not be made smaller."""

    size: Size
    pace: Pace
    ruler: Ruler
    tools: bool = True

    def script(self, conversation: Conversation, copy: int = 0) -> Script:
        """Of a conversation whose calls have a history. ``copy``: which one; each has a mark of its own."""
        turns: list[Turn] = []
        before: tuple[Message, ...] | None = None
        for call in conversation.calls:
            assert call.history is not None
            turn = self._turn(call, before)
            if not self.size.fits(self._prompt(call.history), turn.answer):
                break
            turns.append(turn)
            before = call.history
        if copy and turns:
            turns[0] = replace(turns[0], new=_marked(turns[0].new, f"[{copy}] "))
        return Script(copied(conversation.name, copy), tuple(turns), len(conversation.calls) - len(turns))

    def _turn(self, call: Call, before: tuple[Message, ...] | None) -> Turn:
        history = call.history or ()
        keeps: int | None = None
        new = history
        if before is not None:
            same = common(before, history)
            answered = same == len(before) < len(history) and history[same]["role"] == "assistant"
            keeps = None if answered else same
            new = history[same + 1 :] if answered else history[same:]
        return Turn(
            gap=self.pace.known(call.gap) if before is not None else 0.0,
            new=tuple(self._scaled(message) for message in new),
            answer=self.size.answer(call.answer),
            keeps_messages=keeps,
            tools=call.tools if self.tools and self.size.scale == 1.0 else None,
        )

    def _scaled(self, message: Message) -> Message:
        """The beginning of its text; parts that are not text are left out."""
        text = content_of(message)
        kept = {name: value for name, value in message.items() if name in _FIELDS and value}
        return {**kept, "content": text[: max(1, self.size.tokens(len(text)))]}

    def _prompt(self, history: Sequence[Message]) -> float:
        return self.ruler.prompt([self._scaled(message) for message in history])


_FIELDS = frozenset({"role", "name", "tool_calls", "tool_call_id"})


def _marked(messages: Sequence[Message], mark: str) -> tuple[Message, ...]:
    """Before the first words of the user; where there are none, before the first of all."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
    return tuple(
        {**message, "content": mark + content_of(message)} if i == first else message
        for i, message in enumerate(messages)
    )


def common(before: Sequence[Message], after: Sequence[Message]) -> int:
    """Messages that both begin with."""
    same = 0
    for one, other in zip(before, after, strict=False):
        if one is not other and written(one) != written(other):
            break
        same += 1
    return same


def speaks(conversation: Conversation) -> bool:
    """All of its calls have their messages."""
    return all(_is_sendable(call.history) for call in conversation.calls)


def _is_sendable(history: Any) -> bool:
    return bool(history) and all(message.get("role") for message in history)
