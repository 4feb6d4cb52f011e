"""How much of a prompt repeats what decode holds of its conversation: the last prompt and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from antiphon._difference import common
from antiphon_server.traces.text import thought, tool_written, written
from antiphon_server.traces.trace import Call, Conversation, Message

SLACK = 128
"""Tokens by which a figure may fall short of the last prompt, as it counts whole blocks."""

HIDDEN = 2.0
"""Times the length of an answer's text from which on it is taken to hold more than that."""


class Change(StrEnum):
    """What became of the last prompt."""

    EXTENSION = "extension"
    """This one begins with all of it."""
    CUT = "cut"
    """It does not, and is shorter: something was taken out."""
    REWRITE = "rewrite"
    """It does not, and is no shorter: something before its end was changed."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Tokens. ``held``: the last prompt and its answer. ``shared``: of these, what this prompt certainly
    begins with. ``new``: the rest of it. ``dropped``: of the last prompt, what this one does not begin with.
    ``answer``: the part of the last answer in ``shared``; None: the source cannot tell."""

    change: Change
    held: int
    shared: int
    new: int
    dropped: int
    answer: int | None

    @property
    def most(self) -> int:
        """What this prompt may share at most: where the source cannot tell, the answer is taken to repeat."""
        if self.answer is not None or self.change is not Change.EXTENSION:
            return self.shared
        return min(self.shared + self.new, self.held)


def repeats(conversation: Conversation, block_size: int | None = None) -> tuple[Repeat | None, ...]:
    """Of each call; None for the first and where the source cannot tell. ``block_size``: of the trace."""
    found: list[Repeat | None] = [None] if conversation.calls else []
    sizes: dict[int, int] = {}
    for last, call in zip(conversation.calls, conversation.calls[1:], strict=False):
        found.append(_repeat(last, call, block_size, sizes))
    return tuple(found)


def repeat(last: Call, call: Call, block_size: int | None = None) -> Repeat | None:
    """Of one call, after the last one of its conversation."""
    return _repeat(last, call, block_size, {})


def _repeat(last: Call, call: Call, block_size: int | None, sizes: dict[int, int]) -> Repeat | None:
    if last.history is not None and call.history is not None:
        kept, answer = _by_text(last, call, sizes)
        if answer and _hidden(last, call, sizes):
            answer = 0.0
        return _told(last, call, round(kept * last.prompt), kept == 1.0, round(answer * last.answer))
    if last.blocks is not None and call.blocks is not None and block_size:
        full = min(len(last.blocks), last.prompt // block_size)
        if not full:
            return None
        same = _same(last.blocks, call.blocks)
        # The last block also has what a template writes before the answer, and is another one then.
        whole = same >= max(1, full - 1)
        return _told(last, call, min(same * block_size, last.prompt), whole, None)
    if call.shared is not None:
        kept_tokens = min(call.shared, last.prompt)
        answer_tokens = max(0, min(call.shared - last.prompt, last.answer))
        return _told(last, call, kept_tokens, call.shared >= last.prompt - SLACK, answer_tokens)
    return None


def _told(last: Call, call: Call, kept: int, whole: bool, answer: int | None) -> Repeat:
    """``kept``: tokens of the last prompt. ``whole``: these are all."""
    shared = min(kept + (answer or 0), call.prompt)
    broken = Change.CUT if call.prompt < last.prompt else Change.REWRITE
    return Repeat(
        Change.EXTENSION if whole else broken,
        held=last.prompt + last.answer,
        shared=shared,
        new=call.prompt - shared,
        dropped=0 if whole else max(0, last.prompt - kept),
        answer=None if answer is None else max(0, shared - kept),
    )


def _same(first: Sequence[object], second: Sequence[object]) -> int:
    """How many of them are equal from the beginning."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _by_text(last: Call, call: Call, sizes: dict[int, int]) -> tuple[float, float]:
    """Shares of the last prompt and of its answer with which this prompt begins. A template writes the tools
    before the messages. ``sizes``: bytes of messages, by identity."""
    assert last.history is not None
    assert call.history is not None
    if last.tools is not call.tools:
        old, new = (b"".join(map(tool_written, c.tools or ())) for c in (last, call))
        if old != new:
            whole = len(old) + sum(_sizes(last.history, sizes))
            return (common(old, new) / whole if whole else 0.0), 0.0
    tools = sum(len(tool_written(tool)) for tool in last.tools or ())
    same = part = 0
    for old_message, new_message in zip(last.history, call.history, strict=False):
        if old_message is not new_message:
            old, new = written(old_message), written(new_message)
            if old != new:
                part = common(old, new)
                break
        same += 1
    if same == len(last.history):
        return 1.0, _answer(last, call.history[same:])
    before = tools + sum(_sizes(last.history[:same], sizes)) + part
    rest = sum(_sizes(last.history[same:], sizes))
    whole = before - part + rest
    return (before / whole if whole else 0.0), 0.0


def _answer(last: Call, after: Sequence[Message]) -> float:
    """The share of the last answer with which the messages after the last prompt begin. Clients send answers
    again in other words: without thoughts, without calls that failed, or shortened."""
    if last.reply is None or not after or after[0].get("role") != "assistant":
        return 0.0
    again, reply = after[0], last.reply
    if again is reply:
        return 1.0
    if thought(reply) and thought(reply) != thought(again):
        return 0.0
    old, new = written(reply), written(again)
    return 1.0 if old == new else common(old, new) / len(old)


def _hidden(last: Call, call: Call, sizes: dict[int, int]) -> bool:
    """Whether the last answer was far longer than its text, by what it and the messages after it made the
    prompt grow. Some servers count thoughts that nobody gets to see, and do not tell how many."""
    assert last.history is not None
    assert call.history is not None
    again, *after = _sizes(call.history[len(last.history) :], sizes)
    return last.answer * (again + sum(after)) > HIDDEN * again * (call.prompt - last.prompt)


def _sizes(messages: Sequence[Message], sizes: dict[int, int]) -> Iterator[int]:
    for message in messages:
        if (size := sizes.get(id(message))) is None:
            size = sizes[id(message)] = len(written(message))
        yield size
