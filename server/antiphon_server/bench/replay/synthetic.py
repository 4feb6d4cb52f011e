"""Scripts of conversations of which only lengths are known, and perhaps ids of blocks.

The same id gets the same words, so that what was shared is shared again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from antiphon_server.bench.replay.pace import Pace
from antiphon_server.bench.replay.ruler import Ruler
from antiphon_server.bench.replay.script import Message, Script, Size, Turn
from antiphon_server.bench.replay.words import words
from antiphon_server.traces.prefix import Change, repeat
from antiphon_server.traces.trace import Call, Conversation, Trace

_COMMON = "common"
_BLOCK = 64
"""Tokens that text is made in pieces of, where there are no blocks."""


@dataclass(frozen=True)
class Synthetic:
    """``trace``: whose conversations these are."""

    trace: Trace
    size: Size
    pace: Pace
    ruler: Ruler

    def script(self, conversation: Conversation) -> Script:
        """Of a conversation."""
        turns: list[Turn] = []
        scope = "" if self.trace.shared_blocks else self._root(conversation.name)
        before: Call | None = None
        for index, call in enumerate(conversation.calls):
            turn = self._turn(scope, f"{conversation.name}, turn {index}", call, before)
            if not self.size.fits(self.size.tokens(call.prompt), turn.answer):
                break
            turns.append(turn)
            before = call
        return Script(conversation.name, tuple(turns), len(conversation.calls) - len(turns))

    def _turn(self, scope: str, name: str, call: Call, before: Call | None) -> Turn:
        # Where nothing tells what became of the last prompt, this one extends it.
        told = None if before is None else repeat(before, call, self.trace.block_size)
        grows = before is not None and (told is None or told.change is Change.EXTENSION)
        kept = min(before.prompt, call.prompt) if grows and before else told.shared if told else 0
        common = 0 if kept else min(self.size.common, call.prompt)
        new: list[Message] = []
        if common:
            text = words(_COMMON, "", self.ruler.text(common / self.size.scale))
            new.append({"role": "system", "content": text})
        text = self._text(scope, name, call, skip=max(kept, common), ends=grows)
        return Turn(
            gap=0.0 if before is None else self.pace.known(call.gap),
            new=(*new, {"role": "user", "content": text}),
            answer=self.size.answer(call.answer),
            keeps_tokens=None if before is None or grows else self.size.tokens(kept),
            length=self.size.tokens(call.prompt),
        )

    def _text(self, scope: str, name: str, call: Call, *, skip: int, ends: bool) -> str:
        """Of what follows ``skip`` tokens, and somewhat more: it is cut to the length that is missing.
        ``ends``: its end stays then, else its beginning."""
        size = self.trace.block_size or _BLOCK
        blocks = call.blocks or ()
        characters = self.ruler.text(size / self.size.scale)
        told = "".join(words(scope, block, characters) for block in blocks[skip // size :])
        rest = max(0, call.prompt - max(skip, len(blocks) * size)) + size
        tail = words(name, "tail", self.ruler.text(rest / self.size.scale) + 1)
        return tail + told if ends else told + tail

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
