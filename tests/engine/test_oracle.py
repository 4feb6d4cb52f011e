"""The oracle bites: with the prefix check switched off, the same comparison sees wrong answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from openai import OpenAI

import antiphon
from rig.answers import chat, difference
from rig.fleet import UNCHECKED, Pair
from rig.scenes import SCENES, Scene

pytestmark = pytest.mark.engine

REWRITTEN = [scene for scene in SCENES if not scene.name.startswith("append")]


@pytest.fixture
def pair(pairs: Mapping[str, Pair]) -> Pair:
    return pairs[UNCHECKED]


@pytest.mark.parametrize("scene", REWRITTEN, ids=str)
def test_without_the_check_a_rewritten_history_gives_a_wrong_answer_and_poisons_both_caches(
    scene: Scene, agent: OpenAI, prefill: OpenAI, decode: OpenAI, salt: str
) -> None:
    tools: dict[str, Any] = {"tools": scene.tools} if scene.tools else {}
    with antiphon.conversation():
        first = chat(agent, scene.first, salt=salt, tokens=80, **tools)
        messages = scene.then(scene.first, first)
        second = chat(agent, messages, salt=salt, **tools)
    reference = chat(decode, messages, salt=salt + "-fresh", **tools)
    assert difference(second, reference) > 0.01
    assert difference(chat(prefill, messages, salt=salt, **tools), reference) > 0.01
    assert difference(chat(decode, messages, salt=salt, **tools), reference) > 0.01
