"""Files of JSON, read one document at a time: one a line, several in a list, or the whole file."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from antiphon_server.traces.error import TraceError

SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj")
"""Of the files that are read in a folder, each also with .gz."""
_PAGE = ("data", "meta")
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
_Faults = (msgspec.DecodeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Document:
    """``line``: from 1, 0 where the document is the whole file. ``item``: from 1 in a list. ``fault``: why it
    could not be read."""

    path: Path
    line: int
    value: Any = None
    item: int = 0
    fault: str | None = None

    @property
    def where(self) -> str:
        line = f", line {self.line}" if self.line else ""
        return f"{self.path}{line}{f', item {self.item}' if self.item else ''}"


def files(paths: Sequence[Path]) -> list[Path]:
    """Those named, and those below the folders named, each once.

    Raises:
        TraceError: one is not there, or a folder has none.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            below = [p for p in sorted(path.rglob("*")) if _is_traffic(p.relative_to(path)) and p.is_file()]
            if not below:
                raise TraceError(
                    f"{path}: no file in this folder ends in {', '.join(SUFFIXES)} (or these with .gz)"
                )
            found.update(dict.fromkeys(below))
        elif path.exists():
            found[path] = None
        else:
            raise TraceError(f"{path}: there is no such file or folder")
    if not found:
        raise TraceError("no file was named")
    return list(found)


def _is_traffic(path: Path) -> bool:
    if any(part.startswith(".") for part in path.parts):
        return False
    return path.name.lower().removesuffix(".gz").endswith(SUFFIXES)


def documents(path: Path) -> Iterator[Document]:
    """A file's documents; the items of a list are one each. Where each line is JSON, no more than a line is
    held as text.

    Raises:
        TraceError: the file cannot be opened or is not text.
    """
    try:
        with _open(path) as file:
            if _has_lines(file, path):
                file.seek(0)
                for line, text in enumerate(file, 1):
                    if text.strip():
                        yield from _parse(path, line, text)
            else:
                file.seek(0)
                yield from _whole(path, file.read())
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return cast("BinaryIO", gzip.open(path)) if packed else path.open("rb")


def _has_lines(file: BinaryIO, path: Path) -> bool:
    """Whether each line is a document; else the whole file is."""
    head = [line for line in (file.readline() for _ in range(64)) if line.strip()][:2]
    if not head:
        return True
    if b"\0" in head[0]:
        raise TraceError(f"{path}: this is not JSON text: expected one of {', '.join(SUFFIXES)}")
    first = head[0].removeprefix(_BOM).strip()
    if not first.startswith((b"{", b"[")) or _is_document(first):
        return True
    return len(first) > 1 and len(head) > 1 and _is_document(head[1])


def _is_document(text: bytes) -> bool:
    try:
        return isinstance(_load(text), dict | list)
    except _Faults:
        return False


def _load(text: bytes) -> Any:
    text = text.removeprefix(_BOM)
    try:
        return _decode(text)
    except _Faults:
        # What Python's own json writes though it is none: NaN, halves of surrogate pairs.
        return _mended(json.loads(text.decode("utf-8", "strict")))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(name): _mended(item) for name, item in value.items()}
    return value


def _parse(path: Path, line: int, text: bytes) -> Iterator[Document]:
    try:
        value = _load(text)
    except _Faults as error:
        yield Document(path, line, fault=f"expected JSON: {error}")
    else:
        yield from _items(path, line, value)


def _whole(path: Path, text: bytes) -> Iterator[Document]:
    try:
        value = _load(text)
    except _Faults as fault:
        yield from _several(path, text, fault)
    else:
        del text
        yield from _items(path, 0, value)


def _several(path: Path, text: bytes, fault: Exception) -> Iterator[Document]:
    """Documents over several lines each, one after the other, as consoles print them."""
    words, start, decoder = text.decode("utf-8", "replace"), 0, json.JSONDecoder()
    while start < len(words):
        try:
            value, end = decoder.raw_decode(words, start)
        except _Faults as error:
            said = str(error if start else fault)
            yield Document(
                path, words.count("\n", 0, start) + 1 if start else 0, fault=f"expected JSON: {said}"
            )
            return
        yield from _items(path, words.count("\n", 0, start) + 1, _mended(value))
        start = end
        while start < len(words) and words[start] in " \t\r\n,":
            start += 1


def _items(path: Path, line: int, value: Any) -> Iterator[Document]:
    """A list of messages is one document: a conversation. Platforms answer with pages of a list."""
    if isinstance(value, dict) and _is_page(value):
        value = value["data"]
    if not isinstance(value, list) or (value and isinstance(value[0], dict) and "role" in value[0]):
        yield Document(path, line, value)
        return
    value.reverse()
    for item in range(1, len(value) + 1):
        yield Document(path, line, value.pop(), item)


def _is_page(value: dict[str, Any]) -> bool:
    """Whether it has nothing but a list of objects, and what says which part of all these are."""
    data = value.get("data")
    return (
        isinstance(data, list)
        and bool(data)
        and all(isinstance(item, dict) for item in data)
        and not any(isinstance(beside, dict | list) for name, beside in value.items() if name not in _PAGE)
    )
