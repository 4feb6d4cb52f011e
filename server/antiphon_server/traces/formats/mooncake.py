"""Mooncake's traces: requests by lengths and ids of blocks, without conversations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    return isinstance(value, Mapping) and "hash_ids" in value and "input_length" in value


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


class Reader:
    def __init__(self, pool: Pool) -> None:
        self._files: dict[Path, list[Call]] = {}

    def add(self, document: Document) -> None:
        value = document.value if isinstance(document.value, Mapping) else {}
        at = number(value.get("timestamp"))
        prompt, answer = count(value.get("input_length")), count(value.get("output_length"))
        blocks = blocks_in(value.get("hash_ids"))
        if at is None or prompt is None or answer is None or blocks is None:
            raise UnreadableError(
                'expected {"timestamp", "input_length", "output_length", "hash_ids": [...]}'
            )
        calls = self._files.setdefault(document.path, [])
        calls.append(Call(prompt, answer, at=at / 1000.0, blocks=blocks))

    def end(self) -> Reading:
        found: list[Conversation] = []
        unsure_gaps = 0
        for path, calls in self._files.items():
            file = _File()
            for call in sorted(calls, key=lambda call: call.at or 0.0):
                file.add(call)
            stem = path.name.split(".", 1)[0]
            for index, chain in enumerate(file.chains, 1):
                timed, unsure = with_gaps(chain)
                unsure_gaps += unsure
                found.append(Conversation(f"{stem}-{index}", timed, guessed=True))
        notes = [
            "the source names no conversations: requests were put together where the blocks of one go on "
            f"from another's, which gave {len(found)} conversations"
        ]
        if unsure_gaps:
            notes.append(unsure_note(unsure_gaps))
        alone = len(self._files) == 1
        if not alone:
            notes.append("ids of blocks, and times, are taken to be each file's own")
        return Reading(
            found, block_size=BLOCK, shared_blocks=alone, one_clock=alone, notes=notes if found else ()
        )


FORMAT = Format(
    "mooncake",
    "Mooncake's traces: timestamp in ms, lengths, ids of 512-token blocks, one request a line",
    "blocks",
    fits,
    Reader,
)
