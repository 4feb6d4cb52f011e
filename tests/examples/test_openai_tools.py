from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from antiphon.testing import FakeRouter, Recorded
from rig.recipe import Run, output_of


def shopkeeper(request: Recorded) -> dict[str, Any]:
    """Asks for stock and price at once, then wrongly, then answers."""
    results = sum(message["role"] == "tool" for message in request.body["messages"])
    wanted = {
        0: [("stock", '{ "item":"hinges" }'), ("price", '{"item" : "hinges"}')],
        2: [("price", "hinges")],
    }
    if results not in wanted:
        return {"role": "assistant", "content": "29.40 euros"}
    calls = [
        {
            "id": f"call-{results}-{name}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for name, arguments in wanted[results]
    ]
    # A field that openai does not know, as reasoning models send it.
    return {"role": "assistant", "content": "", "reasoning": "é", "tool_calls": calls}


def ask(router: FakeRouter, *arguments: str) -> str:
    router.answer = shopkeeper
    return output_of("openai_tools", router.base_url.removesuffix("/v1"), "--model", "m", *arguments)


@pytest.fixture(scope="module")
def asked() -> Iterator[tuple[FakeRouter, str]]:
    """A router that was asked, and what was printed."""
    with FakeRouter() as router:
        yield router, ask(router)


def test_loop_is_one_conversation_and_ends_it(asked: tuple[FakeRouter, str]) -> None:
    router, output = asked
    *_, answer, told = output.splitlines()
    assert answer == "29.40 euros"
    assert "'reuse': 2, 'cold': 1" in told
    calls = router.calls()
    assert len(calls) == 3
    assert len({call.body["conversation_id"] for call in calls}) == 1
    assert len({call.headers["x-turn-id"] for call in calls}) == 3
    assert router.ends() == [calls[0].conversation]


def test_each_call_resends_the_last_ones_messages_and_its_reply_as_they_came(
    asked: tuple[FakeRouter, str],
) -> None:
    router, _ = asked
    for before, after in pairwise(router.calls()):
        told = len(before.body["messages"])
        assert after.body["messages"][:told] == before.body["messages"]
        assert after.body["messages"][told] == shopkeeper(before)


def test_results_are_dumped_once_and_mistakes_are_told(asked: tuple[FakeRouter, str]) -> None:
    router, _ = asked
    stock, price, mistake = [each for each in router.calls()[-1].body["messages"] if each["role"] == "tool"]
    assert stock["content"] == '{"item":"hinges","pieces":12}'
    assert price["content"] == '{"item":"hinges","euros":2.45}'
    assert "TurnError: the arguments of call 'call-2-price' (price) are no JSON" in mistake["content"]


def test_last_call_may_use_no_tool() -> None:
    with FakeRouter() as router:
        ask(router, "--turns", "2")
    assert [call.body["tool_choice"] for call in router.calls()] == ["auto", "none"]


def test_openai_tools(run: Callable[..., Run]) -> None:
    ran = run("openai_tools")
    ran.assert_conversations(1)
    ran.assert_exact()
    assert ran.turns["reuse", "full"] == 2
    assert ran.kept == 0
