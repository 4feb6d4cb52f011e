"""Reads traffic, whatever it was logged in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from antiphon_server.traces.error import TraceError, UnreadableError
from antiphon_server.traces.formats import (
    coding_agents,
    messages,
    mooncake,
    openai_log,
    otel,
    swe_agent,
    turn_log,
    vllm_multi_turn,
)
from antiphon_server.traces.formats.format import Format, Reader, Reading
from antiphon_server.traces.pool import Pool
from antiphon_server.traces.source import Document, documents, files
from antiphon_server.traces.trace import Trace

_ALL = (
    turn_log.FORMAT,
    mooncake.FORMAT,
    coding_agents.FORMAT,
    swe_agent.FORMAT,
    vllm_multi_turn.FORMAT,
    otel.FORMAT,
    openai_log.FORMAT,
    messages.FORMAT,
)
"""Those that more documents fit come later."""
FORMATS: dict[str, str] = {each.name: each.description for each in _ALL}
"""What each of them is, in a line, by name."""
_EXPECTED = (
    'expected "messages" or a "request" and its "response" (openai_log, messages), "resourceSpans" (otel), '
    '"event" (turn_log), "trajectory" (swe_agent), "requests" (coding_agents), "hash_ids" (mooncake) or '
    '"filetype" (vllm_multi_turn): docs/traces.md shows them'
)
_HEAD = 64
"""Documents by which a file's format is told."""


def read(
    paths: Sequence[Path],
    *,
    format: str | None = None,  # noqa: A002
    bytes_per_token: float = 4.0,
) -> Trace:
    """The traffic in files and folders. ``format``: one of :data:`FORMATS`; None: told by what is in the
    files. ``bytes_per_token``: for lengths that no source says.

    Raises:
        TraceError: there is nothing to read, most of it is broken, or files do not go together.
    """
    given = _named(format)
    if not bytes_per_token > 0:
        raise TraceError(f"bytes_per_token is {bytes_per_token}: it must be above 0")
    pool, faults = Pool(bytes_per_token), _Faults()
    readers: dict[str, tuple[Format, Reader, Path]] = {}
    for path in files(paths):
        found = documents(path)
        head = list(islice(found, _HEAD))
        chosen = given or _told(head)
        if chosen is None:
            faults.add_file(path, head)
            continue
        if chosen.name not in readers:
            _go_together([(f, p) for f, _, p in readers.values()], chosen, path)
            readers[chosen.name] = (chosen, chosen.reader(pool), path)
        _take(readers[chosen.name][1], chain(head, found), faults)
    faults.check()
    readings = [(each, reader.end()) for each, reader, _ in readers.values()]
    return _trace(readings, faults)


def _named(name: str | None) -> Format | None:
    if name is None:
        return None
    for each in _ALL:
        if each.name == name:
            return each
    raise TraceError(f"there is no format {name!r}: name one of {', '.join(FORMATS)}, or none")


def _told(head: Sequence[Document]) -> Format | None:
    """The format that most of the documents fit; of those that as many fit, the first."""
    fitting = Counter(
        next((each.name for each in _ALL if each.fits(document.value)), None)
        for document in head
        if document.fault is None
    )
    fitting.pop(None, None)
    return _named(fitting.most_common(1)[0][0]) if fitting else None


def _go_together(held: Sequence[tuple[Format, Path]], other: Format, path: Path) -> None:
    for each, first in held:
        if each.kind != other.kind:
            raise TraceError(
                f"{path} is {other.name} and {first} is {each.name}: one tells what repeats by {other.kind}, "
                f"the other by {each.kind}: read them apart"
            )


def _take(reader: Reader, found: Iterator[Document], faults: _Faults) -> None:
    for document in found:
        if document.fault is None:
            try:
                reader.add(document)
            except UnreadableError as error:
                faults.add(f"{document.where}: {error}")
            else:
                faults.read += 1
        else:
            faults.add(f"{document.where}: {document.fault}")


class _Faults:
    """What could not be read, and how much could."""

    def __init__(self) -> None:
        self.read = self.broken = 0
        self._first: str | None = None
        self._files: list[str] = []

    def add(self, said: str) -> None:
        self.broken += 1
        self._first = self._first or said

    def add_file(self, path: Path, head: Sequence[Document]) -> None:
        """No format fits it."""
        if not head:
            self._files.append(f"{path}: nothing is in it: log calls into it, or name another file")
            return
        faulty = next((f"{d.where}: {d.fault}" for d in head if d.fault is not None), None)
        keys = next((sorted(d.value)[:8] for d in head if isinstance(d.value, dict)), None)
        has = "it has no objects" if keys is None else f"it has {', '.join(keys) or 'an empty object'}"
        self._files.append(faulty or f"{path}: this is in no format that is known: {has}; {_EXPECTED}")

    def check(self) -> None:
        if self._files and not self.read:
            raise TraceError(self._files[0])
        if self.broken > self.read:
            raise TraceError(
                f"{self._first} ({self.broken} of {self.broken + self.read} records cannot be read)"
            )

    @property
    def notes(self) -> Iterator[str]:
        if self.broken:
            yield f"{self.broken} of {self.broken + self.read} records could not be read, first {self._first}"
        if self._files:
            yield f"{len(self._files)} files were left out, first {self._files[0]}"


def _trace(readings: Sequence[tuple[Format, Reading]], faults: _Faults) -> Trace:
    conversations = tuple(chain.from_iterable(reading.conversations for _, reading in readings))
    notes = dict.fromkeys(chain(chain.from_iterable(reading.notes for _, reading in readings), faults.notes))
    if not conversations:
        said = "; ".join(notes)
        raise TraceError(
            f"no model call is in what was read ({', '.join(each.name for each, _ in readings)})"
            f"{': ' if said else ''}{said}"
        )
    sizes = {each.name: reading.block_size for each, reading in readings}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise TraceError(f"tokens of a block differ between formats ({told}): read them apart")
    return Trace(
        ", ".join(each.name for each, _ in readings),
        conversations,
        block_size=readings[0][1].block_size,
        shared_blocks=len(readings) == 1 and readings[0][1].shared_blocks,
        estimated=any(reading.estimated for _, reading in readings),
        # Each reader counts from the first call that it has seen.
        one_clock=len(readings) == 1 and readings[0][1].one_clock,
        notes=tuple(notes),
    )
