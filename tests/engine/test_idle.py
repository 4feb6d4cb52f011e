"""What is left when the last conversation is over: nothing pinned, no core busy."""

from __future__ import annotations

import pytest
from openai import OpenAI

import antiphon
from rig import counters
from rig.answers import chat
from rig.fleet import Pair
from rig.load import cores_used
from rig.scenes import FIRST, NEXT

pytestmark = pytest.mark.engine

RELEASED_WITHIN_S = 2.0
QUIET_CORES = 0.2


def released(url: str) -> bool:
    """Nothing is pinned, now or within the time that is promised."""
    return counters.eventually(lambda: counters.pinned(url), lambda pins: pins == 0, RELEASED_WITHIN_S) == 0


def test_closed_conversation_pins_nothing_and_leaves_both_engines_idle(
    pair: Pair, agent: OpenAI, salt: str
) -> None:
    with antiphon.conversation():
        first = chat(agent, FIRST, salt=salt, tokens=80)
        chat(agent, [*FIRST, first.message, NEXT], salt=salt)
        assert counters.pinned(pair.decode) == 1
    assert released(pair.decode)
    assert released(pair.prefill)
    for url in (pair.decode, pair.prefill):
        assert cores_used(url, 2.0) < QUIET_CORES


def test_request_without_a_conversation_pins_nothing_afterwards(pair: Pair, agent: OpenAI, salt: str) -> None:
    chat(agent, FIRST, salt=salt)
    assert released(pair.decode)
