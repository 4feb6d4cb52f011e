"""Recorded agent sessions as turns to replay: what stays of the last prompt, what is new, when, and how long
the answer is. A token here stands for four of the trace."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

Message = dict[str, str]

BLOCK = 16
"""Tokens, of which the simulator makes one out of each letter."""
SCALE = 4
LONGEST_ANSWER = 48
LONGEST_GAP = 600.0
_FRAME = 4
"""Tokens that the chat template puts around a message, beside its role."""


@dataclass(frozen=True, slots=True)
class Turn:
    """``gap``: seconds after the last answer. ``keeps``: tokens of the last prompt that this one begins with,
    None: all of it and the answer. ``new``: messages that follow. ``length``: tokens of the whole prompt, to
    which the last message is cut; None: as they are. ``answer``: tokens."""

    gap: float
    keeps: int | None
    new: tuple[Message, ...]
    length: int | None
    answer: int


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    turns: tuple[Turn, ...]


class History:
    """A conversation's messages so far."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def begin(self, turn: Turn) -> list[Message]:
        """The messages of a turn's request."""
        if turn.keeps is not None:
            self.messages = _cut(self.messages, turn.keeps)
        *before, last = turn.new
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


def sessions(folder: Path, copies: int) -> list[Session]:
    """All sessions below a folder, each so often; copies share no more than system prompt and tools."""
    found: list[Session] = []
    for path in sorted(folder.rglob("*")):
        match path.suffix:
            case ".json":
                trace = json.loads(path.read_text())
                found += [_coding(trace, copy) for copy in range(copies)]
            case ".jsonl":
                for line, text in enumerate(path.read_text().splitlines()):
                    told = json.loads(text)["messages"]
                    found += [_talk(f"{path.stem}-{line}", told, copy) for copy in range(copies)]
            case ".traj":
                told = json.loads(path.read_text())["history"]
                found += [_talk(path.stem, told, copy) for copy in range(copies)]
    return found


def _coding(trace: dict[str, Any], copy: int) -> Session:
    """A trace that tells blocks of 64 tokens by their ids, and no text."""
    name, frame = trace["id"], (trace["tool_tokens"] + trace["system_tokens"]) // trace["block_size"]
    turns: list[Turn] = []
    last: list[int] = []
    for request in trace["requests"]:
        ids, length = request["hash_ids"], request["in"] // SCALE
        same = next(
            (i for i, (a, b) in enumerate(zip(last, ids, strict=False)) if a != b), min(len(last), len(ids))
        )
        # The last block is full only when the prompt ends with it.
        keeps = None if same >= len(last) - 1 else same * BLOCK
        new = [_block(name if number <= frame else f"{name}.{copy}", number) for number in ids[same:]]
        system = [{"role": "system", "content": "".join(new[:frame])}] if not last else []
        text = "".join(new[frame:] if system else new) or _block(name, 0)
        answer = max(2, min(LONGEST_ANSWER, request["out"] // SCALE))
        before = trace["requests"][len(turns) - 1] if turns else None
        gap = min(LONGEST_GAP, _gap(request, before))
        turns.append(Turn(gap, keeps, (*system, {"role": "user", "content": text}), length, answer))
        last = ids
    return Session(f"{name}.{copy}", tuple(turns))


def _gap(request: dict[str, Any], before: dict[str, Any] | None) -> float:
    """Think time; where none is told, the time since the last request less what that one took."""
    told = request.get("think_time")
    if told is None and before is not None:
        told = request["t"] - before["t"] - before.get("api_time", 0.0)
    return max(0.0, float(told or 0.0))


def _talk(name: str, told: Sequence[dict[str, Any]], copy: int) -> Session:
    """A conversation with its text and without times: those are drawn, short after a tool's call."""
    source = random.Random(f"{name}.{copy}")
    turns: list[Turn] = []
    new: list[Message] = []
    for message in told:
        text = _text(message)
        if message["role"] == "assistant":
            gap = source.lognormvariate(math.log(0.5 if new[-1]["role"] == "tool" else 12.0), 0.6)
            answer = max(2, min(LONGEST_ANSWER, len(text) // SCALE))
            turns.append(Turn(gap if turns else 0.0, None, tuple(new), None, answer))
            new = []
        else:
            mark = f"[{copy}] " if message["role"] == "user" and not turns else ""
            new.append({"role": message["role"], "content": mark + text})
    return Session(f"{name}.{copy}", tuple(turns))


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _block(scope: str, number: int) -> str:
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


def flatten(all_sessions: Sequence[Session]) -> Iterator[tuple[Session, int, Turn]]:
    """Every turn."""
    for session in all_sessions:
        for index, turn in enumerate(session.turns):
            yield session, index, turn
