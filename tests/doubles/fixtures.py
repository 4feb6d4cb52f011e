"""Fixtures: the kit's router, and an SDK that gives no try up."""

from __future__ import annotations

import pytest

from antiphon import _ending
from antiphon.testing.plugin import antiphon_router

__all__ = ["antiphon_router", "bare_environment", "patient_ending"]


@pytest.fixture(autouse=True)
def patient_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """No try times out on a busy machine: tests count tries."""
    monkeypatch.setattr(_ending, "ATTEMPT_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
