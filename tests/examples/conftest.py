"""Recipes on the simulated stack."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rig.recipe import Run, output_of, turns_of

TOOL_TURNS = 2
"""Calls that the simulated model makes before it answers a question."""

_KEPT = re.compile(r"^antiphon_frontiers (\d+)", re.MULTILINE)


@pytest.fixture
def run(simulated_stack: Any) -> Callable[..., Run]:
    """Run a recipe: its name, its arguments, and variables to set as ``environ``."""

    def run(recipe: str, *arguments: str, environ: dict[str, str] | None = None) -> Run:
        stack = simulated_stack(prefill={"tool_turns": TOOL_TURNS}, decode={"tool_turns": TOOL_TURNS})
        output = output_of(recipe, stack.router, *arguments, environ=environ)
        metrics = httpx.get(f"{stack.router}/metrics", trust_env=False).text
        asked = [received.body for received in stack.decode.requests if received.path.startswith("/v1/")]
        kept = int(_KEPT.findall(metrics)[0])
        return Run(output, turns_of(stack.router), kept, asked, stack.decode.settings)

    return run
