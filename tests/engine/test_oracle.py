"""The oracle bites: with the prefix check switched off, the same comparison sees wrong answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from openai import OpenAI

import antiphon
from rig.answers import Answer, Messages, chat, difference
from rig.fleet import UNCHECKED, Pair
from rig.scenes import SCENES, Scene

pytestmark = pytest.mark.engine

REWRITTEN = [scene for scene in SCENES if not scene.name.startswith("append")]

SHORTER = "prompt shorter than what decode holds"
"""Its foreign KV fills no whole block, so no prefix cache keeps it."""
VISIBLE = 0.01
"""Difference of log-probabilities that no rounding makes: exact answers differ by less than 0.0001."""


@pytest.fixture
def pair(pairs: Mapping[str, Pair]) -> Pair:
    return pairs[UNCHECKED]


def second_turn(scene: Scene, agent: OpenAI, salt: str) -> tuple[Messages, dict[str, Any], Answer]:
    """Messages, tools and answer of the scene's second turn, by way of the engine that does not check."""
    tools: dict[str, Any] = {"tools": scene.tools} if scene.tools else {}
    tools_then: dict[str, Any] = {"tools": scene.tools_then} if scene.tools_then else tools
    with antiphon.conversation():
        first = chat(agent, scene.first, salt=salt, tokens=80, **tools)
        messages = scene.then(scene.first, first)
        return messages, tools_then, chat(agent, messages, salt=salt, **tools_then)


@pytest.mark.parametrize("scene", REWRITTEN, ids=str)
def test_without_the_check_a_rewritten_history_gives_a_wrong_answer(
    scene: Scene, agent: OpenAI, decode: OpenAI, salt: str
) -> None:
    messages, tools, answer = second_turn(scene, agent, salt)
    reference = chat(decode, messages, salt=salt + "-fresh", **tools)
    assert difference(answer, reference) > VISIBLE


@pytest.mark.parametrize("scene", [scene for scene in REWRITTEN if scene.name != SHORTER], ids=str)
def test_without_the_check_later_plain_requests_are_wrong_too(
    scene: Scene, agent: OpenAI, prefill: OpenAI, decode: OpenAI, salt: str
) -> None:
    messages, tools, _ = second_turn(scene, agent, salt)
    reference = chat(decode, messages, salt=salt + "-fresh", **tools)
    assert difference(chat(prefill, messages, salt=salt, **tools), reference) > VISIBLE
    assert difference(chat(decode, messages, salt=salt, **tools), reference) > VISIBLE
