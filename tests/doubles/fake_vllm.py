"""An environment without vLLM in which its API server can be started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture
def fake_vllm(tmp_path: Path) -> dict[str, str]:
    """Environment in which ``python -m vllm.entrypoints.openai.api_server`` runs ``fake_engine.py``."""
    site = tmp_path / "site"
    package = site / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(
        f"import runpy\nrunpy.run_path({str(FAKE_ENGINE)!r}, run_name='__main__')\n"
    )
    nixl = site / "nixl-1.5.1.dist-info"
    nixl.mkdir()
    (nixl / "METADATA").write_text("Metadata-Version: 2.1\nName: nixl\nVersion: 1.5.1\n")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ANTIPHON_", "FAKE_"))}
    return {**kept, "PYTHONPATH": str(site), "ANTIPHON_CACHE": str(tmp_path / "cache")}
