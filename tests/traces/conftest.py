from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.traces.read import read
from antiphon_server.traces.trace import Trace


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Trace]:
    """Reads documents after they were written to a file, one a line."""

    def written(*documents: Any, name: str = "log.jsonl", format: str | None = None) -> Trace:  # noqa: A002
        path = tmp_path / name
        path.write_text("".join(json.dumps(document) + "\n" for document in documents))
        return read([path], format=format)

    return written
