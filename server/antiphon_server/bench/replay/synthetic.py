"""Scripts of conversations of which only lengths are known, and perhaps ids of blocks.

The same id gets the same words, so that what was shared is shared again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from antiphon_server.bench.replay.history import LEAST
from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.ruler import Ruler
from antiphon_server.bench.replay.script import Message, Script, Size, Turn, copied
from antiphon_server.bench.replay.words import words
from antiphon_server.traces.prefix import Change, repeat
from antiphon_server.traces.trace import Call, Conversation, Trace

_BLOCK = 64
"""Tokens that text is made in pieces of, where there are no blocks."""


@dataclass(frozen=True, slots=True)
class Text:
    """Of one conversation. ``frame``, ``scope``: where the ids of its system prompt's blocks and those of the
    others mean the same. ``fixed``: tokens of system prompt and tools. ``block``: tokens of one.
    ``characters``: of a token of the trace."""

    frame: str
    scope: str
    name: str
    fixed: int
    block: int
    characters: float

    def whole(self, tokens: int) -> int:
        """Those in whole blocks."""
        return tokens // self.block * self.block

    def of(self, call: Call, begin: int, end: int | None = None) -> str:
        """What its blocks say, from one token to another; where there are none, of system prompts alone."""
        if call.blocks is None:
            return words(self.frame, "fixed", self._length(end)) if end is not None else ""
        last = None if end is None else end // self.block
        size = self._length(self.block)
        return "".join(
            words(self.frame if place * self.block < self.whole(self.fixed) else self.scope, id_, size)
            for place, id_ in enumerate(call.blocks[:last])
            if place >= begin // self.block
        )

    def tail(self, call: Call, index: int, begin: int) -> str:
        """Words that no block says: what is missing at the end of a prompt, and somewhat more."""
        told = max(begin, len(call.blocks or ()) * self.block)
        return words(self.name, f"turn {index}", self._length(max(0, call.prompt - told) + self.block) + 1)

    def _length(self, tokens: int) -> int:
        return round(tokens * self.characters)


@dataclass(frozen=True)
class Synthetic:
    """``trace``: whose conversations these are."""

    trace: Trace
    size: Size
    pace: Pace
    ruler: Ruler

    def script(self, conversation: Conversation, copy: int = 0) -> Script:
        """Of a conversation. ``copy``: which one."""
        turns: list[Turn] = []
        text = self._text(conversation, copy)
        before: Call | None = None
        for index, call in enumerate(conversation.calls):
            turn = self._turn(text, index, call, before)
            if not self.size.fits(self.size.tokens(call.prompt), turn.answer):
                break
            turns.append(turn)
            before = call
        return Script(copied(conversation.name, copy), tuple(turns), len(conversation.calls) - len(turns))

    def _text(self, conversation: Conversation, copy: int) -> Text:
        scope = "" if self.trace.shared_blocks else self._root(conversation.name)
        return Text(
            frame="" if self.size.common else scope,
            scope=copied(scope, copy),
            name=copied(conversation.name, copy),
            fixed=conversation.fixed or 0,
            block=self.trace.block_size or _BLOCK,
            characters=self.ruler.characters / self.size.scale,
        )

    def _turn(self, text: Text, index: int, call: Call, before: Call | None) -> Turn:
        # Where nothing tells what became of the last prompt, this one extends it.
        told = None if before is None else repeat(before, call, self.trace.block_size)
        grows = before is not None and (told is None or told.change is Change.EXTENSION)
        kept = min(before.prompt, call.prompt) if grows and before else told.shared if told else 0
        fixed = 0 if kept else text.whole(max(0, min(text.fixed, call.prompt - self._frames)))
        new: list[Message] = []
        if fixed:
            new.append({"role": "system", "content": text.of(call, 0, fixed)})
        rest, tail = text.of(call, max(kept, fixed)), text.tail(call, index, max(kept, fixed))
        # What is too long loses its beginning where it grows, else its end.
        new.append({"role": "user", "content": tail + rest if grows else rest + tail})
        return Turn(
            gap=0.0 if before is None else self.pace.known(call.gap),
            new=tuple(new),
            answer=self.size.answer(call.answer),
            keeps_tokens=None if before is None or grows else self.size.tokens(kept),
            length=self.size.tokens(call.prompt),
        )

    @cached_property
    def _frames(self) -> int:
        """Tokens of the trace that the template's own come to in a prompt of two messages."""
        return math.ceil((self.ruler.head + 2 * self.ruler.frame + LEAST) * self.size.scale)

    def _root(self, name: str) -> str:
        """Sub-agents' blocks have ids of the session that began them."""
        seen = {name}
        while (parent := self._parents.get(name)) is not None and parent not in seen:
            seen.add(parent)
            name = parent
        return name

    @cached_property
    def _parents(self) -> dict[str, str | None]:
        return {conversation.name: conversation.parent for conversation in self.trace.conversations}
