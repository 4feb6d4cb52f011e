"""Each line of docs/lessons.md is held by tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LESSONS = (ROOT / "docs" / "lessons.md").read_text()
SECTIONS = {
    "Reports": 34,
    "The multi-turn example proxy of vLLM": 9,
    "When something fails": 19,
    "Not the router's": 3,
}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    text = LESSONS.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@cache
def defined(path: str) -> frozenset[str]:
    """Names of a file's test functions."""
    found = ast.parse((ROOT / path).read_text()).body
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_line_is_held_by_tests(section: str) -> None:
    found = rows(section)
    assert len(found) >= SECTIONS[section]
    for row in found:
        assert all(row), row
        assert TEST.search(row[2]), row


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(LESSONS)
    assert len(named) == LESSONS.count("::test_") > 100
    assert [f"{path}::{name}" for path, name in named if name not in defined(path)] == []


def test_every_report_is_linked_by_its_number() -> None:
    reports = re.findall(r"\[([a-z-]+)#(\d+)\]\(https://github\.com/[\w-]+/([\w-]+)/issues/(\d+)\)", LESSONS)
    assert len(reports) > 50
    assert all(number == linked for _, number, _, linked in reports)
    for name, repository in {(name, repository) for name, _, repository, _ in reports}:
        assert name == repository or (name, repository) == ("vllm-router", "router")
