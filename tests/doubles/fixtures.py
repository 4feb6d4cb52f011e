"""Fixtures: the kit's router, an SDK that gives no try up, and HTTP clients of one test each."""

from __future__ import annotations

import functools
import sys

import pytest

from antiphon import _ending
from antiphon.testing.plugin import antiphon_router

__all__ = ["antiphon_router", "bare_environment", "own_clients", "patient_ending"]


@pytest.fixture(autouse=True)
def patient_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    """No try times out on a busy machine: tests count tries."""
    monkeypatch.setattr(_ending, "ATTEMPT_SECONDS", 60.0)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(autouse=True)
def own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """LangChain keeps an HTTP client for each URL. A later test's server may get the port of an earlier one,
    whose client its test has closed."""
    utils = sys.modules.get("langchain_openai.chat_models._client_utils")
    if utils is None:
        return
    for kind in ("sync", "async"):
        own = functools.cache(getattr(utils, f"_build_{kind}_httpx_client"))
        monkeypatch.setattr(utils, f"_cached_{kind}_httpx_client", own)
        _past.append(own)


_past: list[object] = []
"""Of all tests: collected, an open client complains in somebody else's."""
