"""Recorded sessions as turns for simulated engines, of which each takes a letter for a token.

- A token stands for four of the trace's: a block of 64 becomes one of 16 letters, always the same ones for
  the same id, so prompts share the prefixes that they shared in the trace. Answers are a quarter as long, at
  most 48 tokens; what the engine really says takes the place of the trace's answer in the next prompt.
- Copies of a session share the system prompt and tools alone.
- Gaps are the trace's, at most 600 s. Where it has no times they are drawn with a fixed seed, half a second
  (median) after a tool's result and 12 s after an answer to a person. A byte of its text is a token.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from antiphon_server.bench.replay.ruler import content_of
from antiphon_server.bench.replay.script import Script, Size, Turn
from antiphon_server.traces.prefix import Change, repeat
from antiphon_server.traces.trace import Conversation, Trace

Message = dict[str, Any]

BLOCK = 16
"""Tokens, of which the simulator makes one out of each letter."""
SIZE = Size(scale=4.0, longest_answer=48)
LONGEST_GAP = 600.0
_FRAME = 4
"""Tokens that the chat template puts around a message, beside its role."""


class History:
    """A conversation's messages so far."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def begin(self, turn: Turn) -> list[Message]:
        """The messages of a turn's request."""
        if turn.keeps_tokens is not None:
            self.messages = _cut(self.messages, turn.keeps_tokens)
        *before, last = map(dict, turn.new)
        self.messages = [*self.messages, *before]
        if turn.length is not None:
            room = max(BLOCK, turn.length - _tokens(self.messages) - _FRAME - len(last["role"]))
            # The last answer stands where the trace's did, so it is the end of what is new that is left.
            last = {**last, "content": last["content"][-room:]}
        self.messages.append(last)
        return self.messages

    def end(self, answer: str) -> None:
        """The assistant has answered."""
        self.messages = [*self.messages, {"role": "assistant", "content": answer}]


def sessions(traces: Sequence[Trace], copies: int) -> list[Script]:
    """All conversations, each so often."""
    return [
        _talk(f"{conversation.name}.{copy}", conversation, copy)
        if all(call.history is not None for call in conversation.calls)
        else _session(conversation, trace.block_size or BLOCK, copy)
        for trace in traces
        for conversation in trace.conversations
        for copy in range(copies)
    ]


def _session(conversation: Conversation, size: int, copy: int) -> Script:
    """One that tells blocks by their ids, and no text."""
    name, fixed = conversation.name, (conversation.fixed or 0) // size
    frame = set((conversation.calls[0].blocks or ())[:fixed])
    turns: list[Turn] = []
    for last, call in pairwise([None, *conversation.calls]):
        assert call is not None
        change = repeat(last, call, size) if last is not None else None
        kept = change.shared // size if change is not None else 0
        keeps = None if change is None or change.change is Change.EXTENSION else kept * BLOCK
        ids = call.blocks or ()
        new = [_block(name if id_ in frame else f"{name}.{copy}", id_) for id_ in ids[kept:]]
        system = [] if turns else [{"role": "system", "content": "".join(new[:fixed])}]
        text = "".join(new[fixed:] if system else new) or _block(name, 0)
        gap = min(LONGEST_GAP, call.gap or 0.0)
        length = int(call.prompt / SIZE.scale)
        answer = _answer(call.answer)
        turns.append(Turn(gap, (*system, {"role": "user", "content": text}), answer, None, keeps, length))
    return Script(f"{name}.{copy}", tuple(turns))


def _talk(name: str, conversation: Conversation, copy: int) -> Script:
    """One with its text and without times."""
    source = random.Random(name)
    turns: list[Turn] = []
    for last, call in pairwise([None, *conversation.calls]):
        assert call is not None
        new = (call.history or ())[len(last.history or ()) + 1 if last is not None else 0 :]
        said = [{"role": message["role"], "content": content_of(message)} for message in new]
        if not turns:
            first = next(message for message in said if message["role"] == "user")
            first["content"] = f"[{copy}] {first['content']}"
        gap = source.lognormvariate(math.log(0.5 if said[-1]["role"] == "tool" else 12.0), 0.6)
        answer = _answer(len(content_of(call.reply)))
        turns.append(Turn(gap if turns else 0.0, tuple(said), answer))
    return Script(name, tuple(turns))


def _answer(recorded: int) -> int:
    return max(2, min(SIZE.longest_answer or recorded, int(recorded / SIZE.scale)))


def _block(scope: str, number: int | str) -> str:
    """The words of a block: the same ones wherever its id occurs."""
    digest = blake2b(f"{scope}:{number}".encode(), digest_size=BLOCK).digest()
    letters = "".join(chr(ord("a") + byte % 26) for byte in digest)
    return f"{letters[:7]} {letters[8:15]} "


def _tokens(messages: Sequence[Message]) -> int:
    return sum(len(m["content"].encode()) + len(m["role"]) + _FRAME for m in messages)


def _cut(messages: Sequence[Message], tokens: int) -> list[Message]:
    """The messages that the first so many tokens hold."""
    kept: list[Message] = []
    for message in messages:
        frame = _FRAME + len(message["role"])
        if tokens <= frame:
            break
        kept.append({**message, "content": message["content"][: tokens - frame]})
        tokens -= frame + len(message["content"])
    return kept


def flatten(all_sessions: Sequence[Script]) -> Iterator[tuple[Script, int, Turn]]:
    """Every turn."""
    for session in all_sessions:
        for index, turn in enumerate(session.turns):
            yield session, index, turn
