"""What the adapter needs, and when it imports it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

pytest.importorskip("langgraph")

import antiphon_langgraph
from antiphon import MissingDependencyError


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_public_names_are_these() -> None:
    assert antiphon_langgraph.__all__ == [
        "AntiphonMiddleware",
        "VerbatimChatOpenAI",
        "chat_openai",
        "conversation_node",
        "conversation_of",
    ]
    with pytest.raises(AttributeError, match="module 'antiphon_langgraph' has no attribute 'nonsense'"):
        _ = antiphon_langgraph.nonsense


def test_every_public_name_can_be_imported() -> None:
    pytest.importorskip("langchain_openai")
    pytest.importorskip("langchain.agents")
    assert all(getattr(antiphon_langgraph, name) for name in antiphon_langgraph.__all__)


def test_importing_it_imports_neither_langchain_nor_openai() -> None:
    loaded = set(run("import sys, antiphon_langgraph; print(*sys.modules)").split())
    assert "antiphon_langgraph" in loaded
    assert not loaded & {"langchain", "langchain_openai", "openai", "langgraph.pregel", "antiphon_openai"}


REFUSED = """
import sys
sys.modules[{blocked!r}] = None
try:
    from antiphon_langgraph import {name}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("blocked", "name", "needed"),
    [
        ("langgraph", "conversation_of", "antiphon_langgraph needs langgraph,"),
        ("langgraph.errors", "conversation_of", "antiphon_langgraph needs langgraph,"),
        ("langchain", "AntiphonMiddleware", "antiphon_langgraph.AntiphonMiddleware needs langchain,"),
        ("langchain_openai", "chat_openai", "antiphon_langgraph.chat_openai needs langchain-openai,"),
        ("openai", "VerbatimChatOpenAI", "antiphon_langgraph.VerbatimChatOpenAI needs langchain-openai,"),
    ],
)
def test_what_is_missing_is_named_with_the_install_command(blocked: str, name: str, needed: str) -> None:
    told = run(REFUSED.format(blocked=blocked, name=name))
    assert told.startswith(f"MissingDependencyError {needed}")
    assert "pip install 'antiphon[langgraph]'" in told


def test_missing_packages_are_our_error_in_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langchain.agents")
    monkeypatch.delitem(sys.modules, "antiphon_langgraph._middleware", raising=False)
    monkeypatch.setitem(sys.modules, "langchain.agents.middleware", None)
    with pytest.raises(MissingDependencyError, match="AntiphonMiddleware needs langchain"):
        _ = antiphon_langgraph.AntiphonMiddleware
    monkeypatch.setitem(sys.modules, "langgraph.errors", None)
    with pytest.raises(MissingDependencyError, match="needs langgraph"):
        importlib.reload(antiphon_langgraph)
