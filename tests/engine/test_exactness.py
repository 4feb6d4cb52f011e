"""The promise: a turn with reuse answers as full recomputation does, and leaves no wrong KV behind."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from openai import OpenAI

import antiphon
from antiphon_server.counters import Counters
from rig import counters
from rig.answers import Answer, Messages, assert_same, chat, common, complete
from rig.fleet import BLOCK, KV_BYTES_PER_TOKEN, Pair
from rig.scenes import FIRST, FORCED, NEXT, SCENES, Scene, user

pytestmark = pytest.mark.engine

ANSWER = 80
"""Tokens of first answers: more than two blocks, so that even a warm prefill has something to pull."""
CALL = 160
"""Tokens that a whole forced tool call takes, one a byte."""

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def fresh() -> str:
    return uuid.uuid4().hex


class Oracle:
    """Full recomputation, by plain requests that carry neither id nor handle."""

    def __init__(self, prefill: OpenAI, decode: OpenAI) -> None:
        self.prefill = prefill
        self.decode = decode

    def check(self, answer: Answer, messages: Messages, salt: str, **more: Any) -> None:
        """``answer`` equals recomputation under a fresh salt; so do later plain requests under its own."""
        reference = chat(self.decode, messages, salt=fresh(), **more)
        assert_same(answer, reference, "the turn with reuse")
        assert_same(chat(self.prefill, messages, salt=salt, **more), reference, "prefill, afterwards")
        assert_same(chat(self.decode, messages, salt=salt, **more), reference, "decode, afterwards")


@pytest.fixture
def oracle(prefill: OpenAI, decode: OpenAI) -> Oracle:
    return Oracle(prefill, decode)


def ideal(before: Answer, after: Answer) -> int:
    """Tokens of the second prompt that decode holds, in whole blocks."""
    return common(before.held, after.prompt) // BLOCK * BLOCK


def assert_reused(pair: Pair, before: Counters, answer: Answer, expected: int) -> None:
    """By prefill's own counters: it computed all but ``expected`` tokens, and what it pulled was moved."""
    total = len(answer.prompt)
    done = counters.eventually(
        lambda: counters.read(pair.prefill) - before,
        lambda now: (
            now.computed + now.local + now.pulled >= total and now.received >= now.pulled * KV_BYTES_PER_TOKEN
        ),
    )
    assert done.computed == total - expected
    assert done.received == done.pulled * KV_BYTES_PER_TOKEN
    assert answer.matched == expected
    assert answer.cached == expected


@streaming
@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_second_turn_is_exact(
    scene: Scene, stream: bool, pair: Pair, agent: OpenAI, oracle: Oracle, salt: str
) -> None:
    tools: dict[str, Any] = {"tools": scene.tools} if scene.tools else {}
    forced: dict[str, Any] = {"tool_choice": FORCED, "tokens": CALL} if scene.forced else {"tokens": ANSWER}
    tools_then: dict[str, Any] = {"tools": scene.tools_then} if scene.tools_then else tools
    with antiphon.conversation():
        first = chat(agent, scene.first, salt=salt, stream=stream, **tools, **forced)
        messages = scene.then(scene.first, first)
        before = counters.read(pair.prefill)
        second = chat(agent, messages, salt=salt, stream=stream, **tools_then)
        expected = ideal(first, second)
        assert expected >= scene.keeps * BLOCK
        assert second.reuse["path"] == "reuse"
        assert_reused(pair, before, second, expected)
        oracle.check(second, messages, salt, **tools_then)


@streaming
def test_four_further_turns_in_a_row_are_exact(
    stream: bool, pair: Pair, agent: OpenAI, oracle: Oracle, salt: str
) -> None:
    messages = list(FIRST)
    with antiphon.conversation():
        last = chat(agent, messages, salt=salt, tokens=ANSWER, stream=stream)
        for turn in range(4):
            messages += [last.message, user(f"Go on with part {turn}.")]
            before = counters.read(pair.prefill)
            answer = chat(agent, messages, salt=salt, tokens=ANSWER, stream=stream)
            assert answer.reuse["path"] == "reuse"
            assert_reused(pair, before, answer, ideal(last, answer))
            last = answer
        oracle.check(last, messages, salt, tokens=ANSWER)


@pytest.mark.parametrize("offset", [-1, 0, 1])
@streaming
def test_lengths_at_block_boundaries_are_exact(
    stream: bool, offset: int, pair: Pair, agent: OpenAI, prefill: OpenAI, decode: OpenAI, salt: str
) -> None:
    """What decode holds, and then the whole prompt too, ends just before, on and just after a block."""
    start = "In the beginning there was a list of things, and then it was read. " * 5
    for rest in ("", "x" * BLOCK):
        with antiphon.conversation():
            prompt = start[: 8 * BLOCK + offset + 1]
            first = complete(agent, prompt, salt=salt, tokens=2 * BLOCK, stream=stream)
            assert len(first.held) == 10 * BLOCK + offset
            # With no rest the new prompt is a token shorter than what decode holds.
            longer = (prompt + first.text)[: len(first.held) - (not rest)] + rest
            before = counters.read(pair.prefill)
            second = complete(agent, longer, salt=salt, stream=stream)
            assert_reused(pair, before, second, ideal(first, second))
            reference = complete(decode, longer, salt=fresh())
            assert_same(second, reference, "the turn with reuse")
            assert_same(complete(prefill, longer, salt=salt), reference, "prefill, afterwards")
            assert_same(complete(decode, longer, salt=salt), reference, "decode, afterwards")
        salt = fresh()


@streaming
def test_two_turns_at_once_on_one_id_are_exact(
    stream: bool, agent: OpenAI, oracle: Oracle, salt: str
) -> None:
    """A conversation that forks: both branches share all but the last message."""
    with antiphon.conversation() as conversation:
        first = chat(agent, FIRST, salt=salt, tokens=ANSWER, stream=stream)
        branches = [[*FIRST, first.message, user(f"Branch {name}, please.")] for name in ("one", "two")]

        def turn(messages: Messages) -> Answer:
            with antiphon.conversation(conversation.id, keep=True):
                return chat(agent, messages, salt=salt, stream=stream)

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(turn, branches))
        assert sum(answer.reuse["path"] == "reuse" for answer in answers) == 1
        for answer, messages in zip(answers, branches, strict=True):
            oracle.check(answer, messages, salt)


@streaming
def test_same_id_under_another_salt_shares_nothing(
    stream: bool, agent: OpenAI, oracle: Oracle, salt: str
) -> None:
    other = fresh()
    with antiphon.conversation():
        first = chat(agent, FIRST, salt=salt, tokens=ANSWER, stream=stream)
        messages = [*FIRST, first.message, NEXT]
        answer = chat(agent, messages, salt=other, stream=stream)
        assert (answer.reuse["path"], answer.matched) == ("cold", 0)
        oracle.check(answer, messages, other)
        # The first salt's frontier is still there, untouched.
        again = chat(agent, messages, salt=salt, stream=stream)
        assert again.reuse["path"] == "reuse"
        oracle.check(again, messages, salt)
