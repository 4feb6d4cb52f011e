from __future__ import annotations

import subprocess
import sys

import antiphon.testing


def test_public_names_are_these() -> None:
    assert antiphon.testing.__all__ == [
        "FakeRouter",
        "Outcome",
        "Recorded",
        "assert_distinct_turns",
        "assert_ended",
        "assert_history_kept",
        "assert_same_conversation",
        "mocked",
        "tool_call",
    ]
    assert all(hasattr(antiphon.testing, name) for name in antiphon.testing.__all__)


def imported_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_the_sdk_does_not_import_the_kit() -> None:
    assert not [name for name in imported_by("import antiphon") if name.startswith("antiphon.testing")]


def test_the_kit_imports_nothing_besides_the_sdk() -> None:
    imported = imported_by("import antiphon.testing")
    assert "antiphon.testing" in imported
    assert not imported & {"respx", "pytest", "httpx", "httpx2", "openai", "antiphon_server"}
