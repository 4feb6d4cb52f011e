"""Records on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


def write_json(record: Any, path: Path) -> None:
    """Any of our records, as indented JSON; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
