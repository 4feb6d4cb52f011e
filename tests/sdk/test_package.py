from __future__ import annotations

import subprocess
import sys

import pytest

import antiphon
from antiphon.testing import FakeRouter


def test_public_names_are_these() -> None:
    assert antiphon.__all__ == [
        "AntiphonError",
        "ClientError",
        "Conversation",
        "ConversationError",
        "Divergence",
        "MissingDependencyError",
        "Router",
        "Stamp",
        "Statistics",
        "ToolCall",
        "Turn",
        "TurnError",
        "Wire",
        "WireError",
        "carry",
        "carrying",
        "conversation",
        "current",
        "hook",
        "stamp",
        "unhook",
        "wire_of",
    ]
    assert all(hasattr(antiphon, name) for name in antiphon.__all__)


def test_importing_the_sdk_imports_no_http_client_no_framework_and_no_server() -> None:
    code = "import sys, antiphon; print(*{name.partition('.')[0] for name in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(ran.stdout.split())
    assert "antiphon" in imported
    assert not imported & {
        "antiphon_langgraph",
        "antiphon_openai",
        "antiphon_server",
        "asyncio",
        "httpx",
        "httpx2",
        "langchain_core",
        "langgraph",
        "openai",
        "opentelemetry",
        "pydantic",
        "tenacity",
    }


def test_importing_the_sdk_takes_less_than_importing_httpx() -> None:
    """That is some 40 ms against 70 ms. Processor time, and the quickest of a few, for machines are busy."""

    def seconds(module: str) -> float:
        code = (
            f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
        )
        command = [sys.executable, "-c", code]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(5)]
        return min(map(float, runs))

    assert seconds("antiphon") < seconds("httpx")


@pytest.mark.parametrize(("present", "missing"), [("httpx", "httpx2"), ("httpx2", "httpx")])
def test_sdk_works_with_either_http_client_alone(
    antiphon_router: FakeRouter, present: str, missing: str
) -> None:
    code = f"""
import sys
sys.modules["{missing}"] = None
import antiphon, {present} as library
with antiphon.hook(library.Client()) as client, antiphon.conversation("c"):
    client.post("{antiphon_router.base_url}/chat/completions", json={{}})
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    assert [request.headers.get("x-session-id") for request in antiphon_router.calls()] == ["c"]
    assert antiphon_router.ends() == ["c"]


def test_every_error_is_an_antiphon_error_and_a_builtin_one() -> None:
    builtin = {
        antiphon.ClientError: TypeError,
        antiphon.ConversationError: ValueError,
        antiphon.MissingDependencyError: ImportError,
        antiphon.TurnError: ValueError,
        antiphon.WireError: ValueError,
    }
    for error, base in builtin.items():
        assert issubclass(error, antiphon.AntiphonError)
        assert issubclass(error, base)
