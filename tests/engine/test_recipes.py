"""Recipes on real engines. The model is tiny and calls no tools: what comes next is another question."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import httpx
import pytest

from rig import counters
from rig.fleet import UNCACHED, Pair
from rig.recipe import output_of, turns_of

pytestmark = pytest.mark.engine

QUESTIONS = ("What are all hinges on the shelf worth, if one is 2.45 euros?", "And the bolts?", "Thank you.")


@pytest.fixture
def pair(pairs: Mapping[str, Pair]) -> Pair:
    """Prefill has no cache of its own: all that matches was pulled from decode."""
    return pairs[UNCACHED]


@pytest.mark.parametrize("recipe", ["openai_tools", "langgraph_agent", "coding_agent"])
def test_later_turns_are_reused_and_nothing_stays_pinned(pair: Pair, recipe: str) -> None:
    if recipe == "langgraph_agent":
        pytest.importorskip("langchain")
    session = str(uuid.uuid4())
    arguments = ["--session", session] if recipe == "coding_agent" else []
    before, pulled = turns_of(pair.router), counters.read(pair.prefill).pulled

    output = output_of(recipe, pair.router, *arguments, *QUESTIONS)
    print(output)

    turns = turns_of(pair.router) - before
    assert turns["cold", "first"] == 1
    assert sum(count for (path, _), count in turns.items() if path == "reuse") >= len(QUESTIONS) - 1
    assert counters.read(pair.prefill).pulled > pulled
    if recipe == "coding_agent":  # its base URL is all that it knows: nobody tells the end of its session
        ended = httpx.delete(
            f"{pair.router}/v1/conversations/{session}", headers={"x-api-key": "none"}, trust_env=False
        )
        assert ended.status_code < 300
    assert counters.eventually(lambda: counters.pinned(pair.decode), lambda pins: pins == 0) == 0
