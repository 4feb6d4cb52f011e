"""Every recipe runs; its loop is one conversation that reuses; answers are those of full recomputation."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest

from rig.recipe import Run

QUESTIONS = 2
TURNS = 3
"""Of a question: two calls and the answer."""

RunRecipe = Callable[..., Run]


def needs(framework: str) -> pytest.MarkDecorator:
    """Frameworks are large: they are imported by the recipe alone."""
    return pytest.mark.skipif(find_spec(framework) is None, reason=f"{framework} is not installed")


@needs("agents")
def test_openai_agents(run: RunRecipe) -> None:
    """The sub-agent is a child conversation each time it is called."""
    ran = run("openai_agents")
    ran.assert_conversations(1 + QUESTIONS)
    ran.assert_exact()
    assert ran.reused == QUESTIONS * TURNS - 1 + QUESTIONS * (TURNS - 1)
    assert ran.kept == 0


@needs("pydantic_ai")
def test_pydantic_ai(run: RunRecipe) -> None:
    ran = run("pydantic_ai_agent")
    ran.assert_conversations(1)
    ran.assert_exact()
    assert ran.reused == QUESTIONS * TURNS - 1
    assert ran.kept == 0


@needs("litellm")
def test_litellm(run: RunRecipe) -> None:
    ran = run("litellm_agent", environ={"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
    ran.assert_conversations(1)
    ran.assert_exact()
    assert ran.turns["reuse", "full"] == QUESTIONS * TURNS - 1
    assert ran.kept == 0


def test_coding_agent(run: RunRecipe) -> None:
    """It is told the base URL alone, so nobody says when its session ends: its KV is kept for a while."""
    ran = run("coding_agent")
    ran.assert_conversations(1)
    ran.assert_exact("messages")
    assert ran.turns["reuse", "full"] == QUESTIONS * TURNS - 1
    assert ran.kept == 1


@needs("langchain")
def test_langgraph_agent(run: RunRecipe) -> None:
    ran = run("langgraph_agent")
    ran.assert_conversations(1)
    ran.assert_exact()
    assert ran.turns["reuse", "full"] == QUESTIONS * TURNS - 1
    assert ran.kept == 0


@needs("langgraph")
def test_langgraph_graph(run: RunRecipe) -> None:
    """Three appraisals, the writer and the critic are a conversation each."""
    ran = run("langgraph_graph")
    ran.assert_conversations(3 + 2)
    ran.assert_exact()
    assert ran.turns["reuse", "full"] == 3 * (TURNS - 1) + 1
    assert ran.kept == 0
