"""Append on real engines: decode goes on from its own KV, exactly, and says at the head what it had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from openai import OpenAI

import antiphon
import antiphon_openai
from rig import counters
from rig.answers import assert_same, chat, client_of, common
from rig.fleet import BLOCK, CACHED, Pair, router
from rig.scenes import FIRST, FORCED, NEXT, SCENES, Scene, user

pytestmark = pytest.mark.engine

REWRITTEN = {"reasoning in the history dropped", "earlier message edited", "tool result truncated"}
REWRITTEN |= {"system prompt changed", "tools list changed", "history compacted to a summary"}
REWRITTEN |= {"prompt shorter than what decode holds"}
"""Scenes whose second request does not begin with the first one's messages and tools."""


@pytest.fixture(scope="module")
def straight(pairs: Mapping[str, Pair], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A router that takes no other path than append where a conversation has KV."""
    pair = pairs[CACHED]
    log = tmp_path_factory.mktemp("append") / "router.log"
    with router(pair.prefill, pair.decode, log, {"ANTIPHON_PATHS": "append"}) as url:
        yield Pair(pair.prefill, pair.decode, url)


@pytest.fixture
def agent(straight: Pair) -> Iterator[OpenAI]:
    with client_of(straight.router) as client:
        yield antiphon_openai.wrap(client)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_second_turn_is_exact(scene: Scene, stream: bool, straight: Pair, agent: OpenAI, salt: str) -> None:
    tools: dict[str, Any] = {"tools": scene.tools} if scene.tools else {}
    forced: dict[str, Any] = {"tool_choice": FORCED, "tokens": 160} if scene.forced else {"tokens": 80}
    tools_then: dict[str, Any] = {"tools": scene.tools_then} if scene.tools_then else tools
    with antiphon.conversation():
        first = chat(agent, scene.first, salt=salt, stream=stream, **tools, **forced)
        messages = scene.then(scene.first, first)
        before = counters.read(straight.prefill)
        second = chat(agent, messages, salt=salt, stream=stream, **tools_then)
        if scene.name in REWRITTEN:
            assert (second.reuse["path"], second.reuse["reason"]) == ("cold", "rewritten")
        else:
            assert (second.reuse["path"], second.reuse["reason"]) == ("append", "short")
            assert second.matched == common(first.held, second.prompt) // BLOCK * BLOCK
            assert (counters.read(straight.prefill) - before).computed == 0
        with client_of(straight.prefill) as prefill, client_of(straight.decode) as decode:
            reference = chat(decode, messages, salt=f"{salt}-fresh", **tools_then)
            assert_same(second, reference, "the turn")
            assert_same(chat(prefill, messages, salt=salt, **tools_then), reference, "prefill, afterwards")
            assert_same(chat(decode, messages, salt=salt, **tools_then), reference, "decode, afterwards")


def test_append_and_reuse_take_turns(pairs: Mapping[str, Pair], straight: Pair, salt: str) -> None:
    """What an append leaves on decode, prefill can pull, and the other way round: two routers over the same
    engines serve one conversation's turns in turn."""
    messages: list[Any] = list(FIRST)
    with client_of(straight.router) as appends, client_of(pairs[CACHED].router) as reuses:
        clients = [antiphon_openai.wrap(appends), antiphon_openai.wrap(reuses)]
        with antiphon.conversation():
            for turn in range(4):
                answer = chat(clients[turn % 2], messages, salt=salt, tokens=40)
                with client_of(straight.decode) as decode:
                    reference = chat(decode, messages, salt=f"{salt}-{turn}", tokens=40)
                assert_same(answer, reference, f"turn {turn}")
                messages += [answer.message, user(f"Go on with part {turn}.")]


def test_closed_conversation_pins_nothing(straight: Pair, agent: OpenAI, salt: str) -> None:
    with antiphon.conversation():
        messages: list[Any] = list(FIRST)
        for _ in range(3):
            answer = chat(agent, messages, salt=salt, tokens=40)
            messages += [answer.message, NEXT]
        assert counters.eventually(lambda: counters.pinned(straight.decode), lambda pins: pins == 1, 2.0) == 1
    assert counters.eventually(lambda: counters.pinned(straight.decode), lambda pins: pins == 0, 2.0) == 0
