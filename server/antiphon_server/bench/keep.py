"""Records on disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec


class KeepError(ValueError):
    """Results could not be kept; the text says why, and what to do."""


def made(folder: Path) -> None:
    """Make the folder of results, before anything is measured that would have no place.

    Raises:
        KeepError: nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = f"no results can be kept there ({error.strerror})"
        raise KeepError(f"--out {folder}: {why}: name another folder") from error


def place(option: str, path: Path) -> None:
    """See that a file can be written, before anything is found out that would have no place. ``option``:
    that names it.

    Raises:
        KeepError: it cannot be.
    """
    if path.is_dir():
        raise KeepError(f"{option} {path}: this is a folder: name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "it is there, and may not be written")
        else:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
    except OSError as error:
        why = f"nothing can be written there ({error.strerror})"
        raise KeepError(f"{option} {path}: {why}: name another file") from error


def write_json(record: Any, path: Path) -> None:
    """Any of our records, as indented JSON; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
