"""What a type checker tells the SDK's users."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("sample_program.py")


@pytest.mark.parametrize("package", ["antiphon", "antiphon_openai", "antiphon_langgraph"])
def test_package_says_that_it_is_typed(package: str) -> None:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).with_name("py.typed").exists()


def test_program_of_a_user_is_checked_by_strict_mypy(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(SAMPLE.read_text())
    assert pytestconfig.cache is not None
    cache = str(pytestconfig.cache.mkdir("mypy"))  # half a minute without
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.stdout.startswith("Success"), ran.stdout + ran.stderr
