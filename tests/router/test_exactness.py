"""Whatever a client does to its history, the answer is that of full recomputation."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones? Again with some care, if you would."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string"}, "deep": {"type": "boolean"}},
            },
        },
    }
]


def append(history: list[Message]) -> list[Message]:
    return [*history, FOLLOW]


def edited(history: list[Message]) -> list[Message]:
    user = {**history[1], "content": "Name the LAST letters, please, and take your time about it."}
    return [history[0], user, *history[2:], FOLLOW]


def regenerated(history: list[Message]) -> list[Message]:
    return history[:-1]


def another_answer(history: list[Message]) -> list[Message]:
    return [*history[:-1], {"role": "assistant", "content": "something that was never sampled"}, FOLLOW]


def truncated(history: list[Message]) -> list[Message]:
    return [history[0], {**history[1], "content": history[1]["content"][:20]}, *history[2:], FOLLOW]


def other_system(history: list[Message]) -> list[Message]:
    return [{"role": "system", "content": "Be someone else."}, *history[1:], FOLLOW]


def compacted(history: list[Message]) -> list[Message]:
    return [history[0], {"role": "user", "content": "Summary: letters were named."}, FOLLOW]


def shorter(history: list[Message]) -> list[Message]:
    return [{"role": "user", "content": "hi"}]


CHANGES = [append, edited, regenerated, another_answer, truncated, other_system, compacted, shorter]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("change", CHANGES)
async def test_next_turn_answers_as_full_recomputation(
    start: Any, opening: list[Message], change: Any, caching: bool, stream: bool
) -> None:
    rig = await start(prefill={"prefix_caching": caching})
    first = await rig.ask(opening, conversation="c", stream=stream)
    second = change([*opening, first.message])
    await rig.ask(second, conversation="c", stream=stream)
    # Nothing was poisoned for those who carry no id.
    await rig.ask(second)
    await rig.ask(append(second))


@pytest.mark.parametrize("stream", [False, True])
async def test_plain_append_reuses_all_full_blocks(start: Any, opening: list[Message], stream: bool) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c", stream=stream)
    held = first.usage["prompt_tokens"] + len(first.ids) - 1
    second = await rig.ask(append([*opening, first.message]), conversation="c", stream=stream)
    assert (second.path, second.reason) == ("reuse", "full")
    assert second.matched == held // 16 * 16 == rig.prefill[0].counters.pulled
    assert second.usage["prompt_tokens_details"]["cached_tokens"] == second.matched


async def test_edited_history_reuses_the_common_prefix(start: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    second = await rig.ask(edited([*opening, first.message]), conversation="c")
    assert (second.path, second.reason) == ("reuse", "cut")
    assert 0 < second.matched < first.usage["prompt_tokens"]


async def test_strange_history_reuses_nothing(start: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    second = await rig.ask(other_system([*opening, first.message]), conversation="c")
    assert (second.path, second.reason, second.matched) == ("cold", "mismatch", 0)


async def test_unchecked_engines_would_answer_wrong(start: Any, opening: list[Message]) -> None:
    rig = await start(prefill={"check": False}, decode={"check": False})
    first = await rig.ask(opening, conversation="c")
    with pytest.raises(AssertionError):
        await rig.ask(edited([*opening, first.message]), conversation="c")


@pytest.mark.parametrize("stream", [False, True])
async def test_every_turn_of_a_long_conversation_reuses(
    start: Any, opening: list[Message], stream: bool
) -> None:
    rig = await start()
    history, paths = list(opening), []
    for _ in range(6):
        answer = await rig.ask(history, conversation="c", stream=stream)
        paths.append(answer.path)
        history = append([*history, answer.message])
    assert paths == ["cold", *["reuse"] * 5]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
async def test_tool_round_reuses_and_passes_calls_unchanged(
    start: Any, opening: list[Message], choice: Any
) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c", tools=TOOLS, tool_choice=choice)
    (call,) = first.message["tool_calls"]
    assert call["function"]["name"] == "look"
    result = {"role": "tool", "tool_call_id": call["id"], "content": "nothing to see " * 8}
    respaced = {
        **call,
        "function": {**call["function"], "arguments": call["function"]["arguments"].replace(": ", ":")},
    }
    for sent in (call, respaced):
        message = {"role": "assistant", "content": None, "tool_calls": [sent]}
        second = await rig.ask([*opening, message, result], conversation="c", tools=TOOLS)
        assert second.path == "reuse"


async def test_reasoning_passes_and_may_be_dropped(start: Any, opening: list[Message]) -> None:
    rig = await start(prefill={"reasoning_tokens": 24}, decode={"reasoning_tokens": 24})
    first = await rig.ask(opening, conversation="c")
    assert len(first.message["reasoning"]) == 24
    kept = {"role": "assistant", "content": first.text}
    second = await rig.ask(append([*opening, kept]), conversation="c")
    assert (second.path, second.reason) == ("reuse", "cut")


async def test_another_salt_never_shares(start: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c", cache_salt="one")
    second = await rig.ask(append([*opening, first.message]), conversation="c", cache_salt="two")
    assert (second.path, second.matched) == ("cold", 0)


async def test_another_tenant_never_shares(start: Any, opening: list[Message]) -> None:
    rig = await start()
    first = await rig.ask(opening, conversation="c", headers={"Authorization": "Bearer one"})
    second = await rig.ask(
        append([*opening, first.message]), conversation="c", headers={"Authorization": "Bearer two"}
    )
    assert (second.path, second.reason) == ("cold", "first")


async def test_two_turns_at_once_are_both_right_and_the_loser_is_released(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 400.0})
    first = await rig.ask(opening, conversation="c")
    history = append([*opening, first.message])
    answers = await asyncio.gather(*(rig.ask(history, conversation="c", stream=bool(i)) for i in range(2)))
    assert sorted((a.path, a.reason) for a in answers) == [("cold", "busy"), ("reuse", "full")]
    await settled(lambda: len(rig.decode[0].pinned) == 1)
    third = await rig.ask(append([*history, answers[0].message]), conversation="c")
    assert third.path == "reuse"


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_reuse_too(start: Any, stream: bool) -> None:
    rig = await start()
    prompt, paths = "A long prompt of one text, with many letters in it. " * 3, []
    for _ in range(3):
        body: dict[str, Any] = {
            "model": "simulated",
            "prompt": prompt,
            "max_tokens": 20,
            "conversation_id": "c",
        }
        plain = {**body, "conversation_id": None, "cache_salt": "fresh"}
        if stream:
            body["stream"] = True
        reply = await rig.client.post("/v1/completions", json=body)
        expected = (await rig.client.post("/v1/completions", json=plain)).json()["choices"][0]["text"]
        if stream:
            events = [json.loads(e[6:]) for e in reply.text.split("\n\n") if e.startswith("data: {")]
            text = "".join(choice["text"] for event in events for choice in event["choices"])
        else:
            text = reply.json()["choices"][0]["text"]
        assert text == expected
        paths.append(reply.headers["x-antiphon-reuse"].split(";")[0])
        prompt += text + " and on it goes"
    assert paths == ["path=cold", "path=reuse", "path=reuse"]


async def test_block_boundaries(start: Any) -> None:
    rig = await start()
    for letters in range(60, 68):
        messages = [{"role": "user", "content": "x" * letters}]
        first = await rig.ask(messages, conversation=f"c{letters}")
        second = await rig.ask(append([*messages, first.message]), conversation=f"c{letters}")
        assert second.path == "reuse"


@pytest.mark.parametrize("path", ["reuse", "append"])
async def test_reply_says_how_long_the_prompt_was_and_what_decode_held(
    start: Any, opening: list[Message], path: str
) -> None:
    rig = await start(router={"paths": [path]})
    first = await rig.ask(opening, conversation="c", stream=True)
    assert first.reuse["prompt"] == str(first.usage["prompt_tokens"])
    assert "held" not in first.reuse

    second = await rig.ask(append([*opening, first.message]), conversation="c", stream=True)
    assert second.path == path
    assert second.reuse["prompt"] == str(second.usage["prompt_tokens"])
    held = first.usage["total_tokens"] - 1  # the last token's KV is never computed
    assert int(second.reuse["held"]) == held
    assert second.matched <= held
