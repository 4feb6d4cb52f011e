"""Mooncake's traces: requests by lengths and ids of blocks, most without conversations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphon_server.traces.clock import far_note, order, plausible
from antiphon_server.traces.error import UnreadableError
from antiphon_server.traces.formats.coding_agents import blocks_in
from antiphon_server.traces.formats.format import Format, Reading
from antiphon_server.traces.gaps import unsure_note, with_gaps
from antiphon_server.traces.number import count, number
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Call, Conversation

BLOCK = 512
"""Tokens."""


def fits(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and "input_length" in value
        and ("hash_ids" in value or "session_id" in value)
    )


class _File:
    """A file's requests. ``owner``: of each block, the conversation that had it first."""

    def __init__(self) -> None:
        self.chains: list[list[Call]] = []
        self._owner: dict[int | str, int] = {}

    def add(self, call: Call) -> None:
        blocks = call.blocks or ()
        known = next((i for i, block in enumerate(blocks) if block not in self._owner), len(blocks))
        chain = self._owner[blocks[known - 1]] if known else None
        if chain is None or not self._extends(chain, blocks):
            chain = len(self.chains)
            self.chains.append([])
        self.chains[chain].append(call)
        for block in blocks:
            self._owner.setdefault(block, chain)

    def _extends(self, chain: int, blocks: tuple[int | str, ...]) -> bool:
        """Whether these go on from the last prompt of the conversation that had the last known one of them
        first. A prompt's last block may not be full."""
        last = self.chains[chain][-1]
        full = last.prompt // BLOCK
        held = (last.blocks or ())[:full]
        return bool(held) and blocks[:full] == held


@dataclass(frozen=True, slots=True)
class _Row:
    """``session``: its conversation, where it names one. ``call``: without blocks, its prompt is only what it
    adds."""

    call: Call
    session: str | None


class Reader:
    def __init__(self, pool: Pool) -> None:
        self._files: dict[Path, list[_Row]] = {}

    def add(self, document: Document) -> None:
        value = document.value if isinstance(document.value, Mapping) else {}
        session = value.get("session_id")
        named = isinstance(session, str | int)
        at, delay = number(value.get("timestamp")), number(value.get("delay"))
        prompt, answer = count(value.get("input_length")), count(value.get("output_length"))
        blocks = blocks_in(value.get("hash_ids"))
        known = blocks is not None or (named and "hash_ids" not in value)
        if prompt is None or answer is None or not known or (at is None and not named):
            raise UnreadableError(
                'expected {"timestamp", "input_length", "output_length", "hash_ids": [...]}, or "session_id" '
                'with "input_length" and "output_length"'
            )
        call = Call(prompt, answer, at=_seconds(at), gap=_seconds(delay), blocks=blocks)
        self._files.setdefault(document.path, []).append(_Row(call, str(session) if named else None))

    def end(self) -> Reading:
        found: list[Conversation] = []
        unsure_gaps = far = added = 0
        alone = len(self._files) == 1
        for path, rows in self._files.items():
            times = plausible([row.call.at for row in rows])
            far += sum(row.call.at is not None and at is None for row, at in zip(rows, times, strict=True))
            sessions: dict[str, list[Call]] = {}
            file = _File()
            for i in order(times):
                call = replace(rows[i].call, at=times[i])
                if (session := rows[i].session) is None:
                    file.add(call)
                else:
                    sessions.setdefault(session, []).append(call)
            stem = path.name.split(".", 1)[0]
            told = [
                (name if alone else f"{stem}-{name}", _grown(calls), False)
                for name, calls in sessions.items()
            ]
            told += [(f"{stem}-{index}", chain, True) for index, chain in enumerate(file.chains, 1)]
            added += sum(call.blocks is None for calls in sessions.values() for call in calls[1:])
            for name, calls, guessed in told:
                timed, unsure = with_gaps(calls)
                unsure_gaps += unsure
                found.append(Conversation(name, timed, guessed=guessed))
        notes = []
        if guesses := sum(conversation.guessed for conversation in found):
            notes.append(
                "the source names no conversations: requests were put together where the blocks of one go on "
                f"from another's, which gave {guesses} conversations"
            )
        if added:
            notes.append(
                f"{added} rows have no hash_ids: their length is taken to be what a turn adds to the last "
                "prompt and its answer"
            )
        if far:
            notes.append(far_note(far, "rows"))
        if unsure_gaps:
            notes.append(unsure_note(unsure_gaps))
        if not alone:
            notes.append("ids of blocks, and times, are taken to be each file's own")
        return Reading(
            found, block_size=BLOCK, shared_blocks=alone, one_clock=alone, notes=notes if found else ()
        )


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000.0


def _grown(calls: list[Call]) -> list[Call]:
    """A session's, each with its whole prompt."""
    found: list[Call] = []
    for call in calls:
        if call.blocks is None and found:
            held = found[-1].prompt + found[-1].answer
            call = replace(call, prompt=held + call.prompt, shared=held)
        found.append(call)
    return found


FORMAT = Format(
    "mooncake",
    "Mooncake's traces: timestamp or delay in ms, lengths, ids of 512-token blocks, one request a line",
    "blocks",
    fits,
    Reader,
)
