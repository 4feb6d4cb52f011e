"""What a format is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document
from antiphon_server.traces.trace import Conversation

Kind = Literal["text", "blocks", "figures"]
"""How it tells what repeats: by the text, by ids of blocks, or by figures alone."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of one format. As in :class:`antiphon_server.traces.trace.Trace`."""

    conversations: Sequence[Conversation]
    block_size: int | None = None
    shared_blocks: bool = False
    estimated: bool = False
    one_clock: bool = True
    notes: Sequence[str] = ()


class Reader(Protocol):
    """Takes a format's documents, in the order in which they stand."""

    def add(self, document: Document) -> None:
        """Raises:
        UnreadableError: it is not what the format says.
        """

    def end(self) -> Reading: ...


@dataclass(frozen=True, slots=True)
class Format:
    """``fits``: whether a document looks like one of these."""

    name: str
    description: str
    kind: Kind
    fits: Callable[[Any], bool]
    reader: Callable[[Pool], Reader]
