"""The documentation builds without a warning and without a network, names all reasons, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from antiphon._divergence import Kind
from antiphon_server.router.plan.reasons import Reason
from rig.recipe import ROOT, output_of_program, turns_of

DOCS = ROOT / "docs"
WRITTEN_URL = "http://localhost:8000/v1"
RUNNABLE = re.compile(r"<!-- run -->\n```python\n(.*?)```", re.DOTALL)
FETCHED = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="?(?:https?:)?//[^>]*>')
PAGES = sorted(
    str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "<!-- run -->" in page.read_text()
)


def test_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocstrings_handlers.python")
    quiet = {"NO_MKDOCS_2_WARNING": "1"}
    output_of_program("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path), environ=quiet)
    pages = {page.relative_to(tmp_path): page.read_text() for page in tmp_path.rglob("*.html")}
    assert len(pages) > len(list(DOCS.rglob("*.md")))  # and the one for what is not found
    assert [(str(page), found) for page, text in pages.items() for found in FETCHED.findall(text)] == []
    reference = pages[Path("reference/antiphon.html")]
    assert 'id="antiphon.Conversation.child"' in reference
    assert "doctest" not in reference
    assert "<blockquote>" not in reference  # as Markdown has examples without a fence
    assert ":meth:" not in reference
    assert "_ancestors" not in reference  # private parameters of dataclasses


def table(heading: str) -> list[str]:
    """What stands first in the rows of a section's table in ``why-reuse-drops.md``."""
    section = (DOCS / "why-reuse-drops.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)


def test_every_reason_is_explained_to_users() -> None:
    assert sorted(table("By reason")) == sorted(Reason)


def test_every_kind_of_difference_is_explained_to_users() -> None:
    assert sorted(table("By kind of difference")) == sorted(Kind)


@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_runs(page: str, simulated_stack: Any, tmp_path: Path) -> None:
    """Its marked blocks, one after the other; what they reuse they assert themselves."""
    if "langgraph" in page:
        pytest.importorskip("langchain")
    stack = simulated_stack(prefill={"tool_turns": 1}, decode={"tool_turns": 1})
    blocks = RUNNABLE.findall((DOCS / page).read_text())
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks).replace(WRITTEN_URL, f"{stack.router}/v1"))
    output_of_program(str(program))
    turns = turns_of(stack.router)
    assert turns["cold", "first"] > 0
    assert ("cold", "anonymous") not in turns


def test_all_tutorials_run() -> None:
    assert {
        f"tutorials/{name}.md" for name in ("langgraph", "openai", "other-frameworks", "tool-loops")
    } <= set(PAGES)
