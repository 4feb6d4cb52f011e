"""Files that are looked at: regular ones of a bounded size, and YAML whose aliases stay small."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from antiphon_server.strict_yaml import LocatingLoader

LARGEST = 2 << 20
"""Bytes of a file. The parser takes some ten seconds for them."""
MOST_NODES = 200_000
"""Values of a document, those that aliases repeat included."""
RENDER = "correct it, or render templates first"
READER = "run the doctor as a user that may read it"


class UnreadError(ValueError):
    """A file that is not read. ``missing``: it is not there. ``forbidden``: this user may not read it."""

    def __init__(
        self, path: Path, why: str, remedy: str, *, missing: bool = False, forbidden: bool = False
    ) -> None:
        super().__init__(f"{path} cannot be read: {why}")
        self.remedy, self.missing, self.forbidden = remedy, missing, forbidden


def text_of(path: Path) -> str:
    """What stands in a file. Pipes and devices are never waited for.

    Raises:
        UnreadError
    """
    try:
        # Without O_NONBLOCK a pipe would be waited for before it can be told to be one.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnreadError(path, "it is no regular file", "write what it holds into one")
            found = file.read(LARGEST + 1)
    except OSError as error:
        forbidden = isinstance(error, PermissionError)
        raise UnreadError(
            path,
            error.strerror or type(error).__name__,
            READER if forbidden else "name a file that can be read",
            missing=isinstance(error, FileNotFoundError | NotADirectoryError),
            forbidden=forbidden,
        ) from None
    if len(found) > LARGEST:
        why = f"it is larger than {LARGEST >> 20} MiB"
        raise UnreadError(path, why, "give the part with the engines")
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadError(path, "it is not UTF-8 text", "name a text file, or remove this one") from None


def documents(path: Path, text: str) -> list[Any]:
    """Every document of a YAML file, ``text``, which JSON is too.

    Raises:
        UnreadError: it is no YAML, refers to itself, is nested too deeply, or grows beyond all bounds.
    """
    try:
        return list(_documents(path, text))
    except RecursionError:
        raise UnreadError(path, "it is nested too deeply", RENDER) from None
    except UnreadError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the latter of an escaped sign that is none
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        raise UnreadError(path, f"it is not YAML{place}", RENDER) from None


class _Loader(LocatingLoader):
    """Takes tags of an application, such as compose's, for what stands behind them."""


def _documents(path: Path, text: str) -> Iterator[Any]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            # Before anything is made of it: merge keys copy what they name.
            if node is not None and _grown(path, node, {}, set()) > MOST_NODES:
                why = f"its aliases grow to more than {MOST_NODES} values"
                raise UnreadError(path, why, "write fewer of them")
            yield loader.construct_document(node)
    finally:
        loader.dispose()


def _grown(path: Path, node: yaml.Node, known: dict[int, int], above: set[int]) -> int:
    """Values of the node with its aliases written out, each of which is counted once."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in above:
        raise UnreadError(path, "an alias in it refers to itself", "remove that alias")
    if id(node) not in known:
        above.add(id(node))
        size = 1
        for each in node.value:
            for one in each if isinstance(each, tuple) else (each,):
                size += _grown(path, one, known, above)
        above.discard(id(node))
        known[id(node)] = size
    return known[id(node)]


def _untagged(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Any:
    if tag == "reset":  # compose's: as if it were not given
        return None
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    kind = loader.resolve(yaml.ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
    plain = yaml.ScalarNode(kind, node.value)
    return loader.construct_object(plain, deep=True)


_Loader.add_multi_constructor("!", _untagged)
