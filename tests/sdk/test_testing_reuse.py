"""The fake router tells honestly what of a history it could have used again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from antiphon._outcome import outcome_of
from antiphon.testing import FakeRouter, Recorded, tool_call

USER: dict[str, Any] = {"role": "user", "content": "How many hinges are there?"}
TOLD: dict[str, Any] = {"role": "tool", "tool_call_id": "1", "content": "12"}


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with FakeRouter() as router:
        yield router


def ask(
    router: FakeRouter, messages: list[Any], conversation: str | None = "c", **body: Any
) -> httpx.Response:
    named = {"conversation_id": conversation} if conversation else {}
    payload = {"model": "m", "messages": messages, **named, **body}
    return httpx.post(f"{router.base_url}/chat/completions", json=payload)


def said(reply: httpx.Response) -> Any:
    return reply.json()["choices"][0]["message"]


def test_first_turn_is_cold_and_a_kept_history_is_matched_in_full(router: FakeRouter) -> None:
    router.replies(tool_call("stock", item="hinges"), "There are 12.")
    first = ask(router, [USER])
    assert first.headers["x-antiphon-reuse"] == "path=cold; matched=0; reason=first; prompt=14"
    second = ask(router, [USER, said(first), TOLD])

    reuse = outcome_of(second.headers)
    assert reuse == router.calls()[1].reuse
    assert (reuse.path, reuse.reason) == ("reuse", "full")
    assert reuse.matched == reuse.held
    assert (reuse.prompt or 0) > (reuse.matched or 0) > 14
    usage = second.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == reuse.matched
    assert usage["prompt_tokens"] == reuse.prompt
    assert first.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("form", ["arguments", "dropped"])
def test_history_that_is_written_again_is_cut_there(router: FakeRouter, form: str) -> None:
    router.replies({**tool_call("stock", item="hinges"), "reasoning_content": "hm"})
    answer = said(ask(router, [USER]))
    if form == "arguments":
        answer["tool_calls"][0]["function"]["arguments"] = '{"item": "hinges"}'
    else:
        del answer["reasoning_content"]
    ask(router, [USER, answer, TOLD])
    reuse = router.calls()[1].reuse
    assert reuse is not None
    assert (reuse.path, reuse.reason) == ("reuse", "cut")
    assert 14 <= (reuse.matched or 0) < (reuse.held or 0)


def test_null_field_is_as_good_as_a_missing_one(router: FakeRouter) -> None:
    answer = said(ask(router, [USER]))
    ask(router, [USER, {**answer, "refusal": None}, USER])
    reuse = router.calls()[1].reuse
    assert reuse is not None
    assert reuse.reason == "full"


def test_order_of_fields_does_not_matter(router: FakeRouter) -> None:
    answer = said(ask(router, [USER]))
    history = [dict(reversed(message.items())) for message in (USER, answer)]
    assert "reason=full" in ask(router, [*history, USER]).headers["x-antiphon-reuse"]


def test_history_that_begins_otherwise_shares_nothing(router: FakeRouter) -> None:
    ask(router, [USER])
    reply = ask(router, [{"role": "user", "content": "Other"}])
    assert reply.headers["x-antiphon-reuse"].startswith(
        "path=cold; matched=0; reason=mismatch; prompt=9; held="
    )


def test_other_tools_cut_the_history_at_its_beginning(router: FakeRouter) -> None:
    answer = said(ask(router, [USER], tools=[{"type": "function", "function": {"name": "a"}}]))
    ask(router, [USER, answer, USER], tools=[{"type": "function", "function": {"name": "b"}}])
    reuse = router.calls()[1].reuse
    assert reuse is not None
    assert (reuse.matched or 0) < 16


def test_ended_conversation_begins_anew(router: FakeRouter) -> None:
    answer = said(ask(router, [USER]))
    assert httpx.delete(f"{router.base_url}/conversations/c").status_code == 204
    assert httpx.delete(f"{router.base_url}/conversations/c").status_code == 404
    reply = ask(router, [USER, answer, USER])
    assert "reason=first" in reply.headers["x-antiphon-reuse"]


def test_final_turn_ends_its_conversation(router: FakeRouter) -> None:
    payload = {"messages": [USER], "conversation_id": "c"}
    headers = {"X-Session-Final": "true"}
    httpx.post(f"{router.base_url}/chat/completions", json=payload, headers=headers)
    assert httpx.get(f"{router.base_url}/conversations/c").status_code == 404


@pytest.mark.parametrize("other", [{"model": "other"}, {"cache_salt": "s"}, {"conversation": "d"}])
def test_nothing_is_shared_with_another_model_salt_or_conversation(
    router: FakeRouter, other: dict[str, Any]
) -> None:
    ask(router, [USER])
    assert "reason=first" in ask(router, [USER], **other).headers["x-antiphon-reuse"]


def test_call_without_an_id_is_served_without_reuse(router: FakeRouter) -> None:
    for _ in range(2):
        reply = ask(router, [USER], None)
        assert reply.headers["x-antiphon-reuse"] == "path=cold; matched=0; reason=anonymous; prompt=14"


def test_turn_beside_another_one_is_cold_and_the_last_to_finish_wins(router: FakeRouter) -> None:
    second_came, second_left = threading.Event(), threading.Event()

    def answer(call: Recorded) -> str:
        if call.body["messages"][-1]["content"] == "slow":
            second_came.set()
            assert second_left.wait(30)
        return "ok"

    router.answer = answer
    thread = threading.Thread(target=ask, args=(router, [{"role": "user", "content": "slow"}]))
    thread.start()
    assert second_came.wait(30)
    state = httpx.get(f"{router.base_url}/conversations/c").json()
    assert (state["turns_in_flight"], state["kept"]) == (1, [])
    reply = ask(router, [USER])
    second_left.set()
    thread.join()
    assert "path=cold; matched=0; reason=busy" in reply.headers["x-antiphon-reuse"]
    assert "reason=mismatch" in ask(router, [USER]).headers["x-antiphon-reuse"]


def test_conversation_that_ends_during_a_turn_stays_ended(router: FakeRouter) -> None:
    def answer(call: Recorded) -> str:
        httpx.delete(f"{router.base_url}/conversations/c")
        return "ok"

    router.answer = answer
    ask(router, [USER])
    assert httpx.get(f"{router.base_url}/conversations/c").status_code == 404


def test_conversation_that_began_anew_during_a_turn_is_another_one(router: FakeRouter) -> None:
    def answer(call: Recorded) -> str:
        router.answer = lambda call: "ok"
        httpx.delete(f"{router.base_url}/conversations/c")
        ask(router, [USER])
        return "old"

    router.answer = answer
    ask(router, [{"role": "user", "content": "Other"}])
    state = httpx.get(f"{router.base_url}/conversations/c").json()
    assert state["turns_in_flight"] == 0
    assert (
        "reason=full"
        in ask(router, [USER, {"role": "assistant", "content": "ok"}]).headers["x-antiphon-reuse"]
    )


def test_scripted_failure_leaves_the_history_alone(router: FakeRouter) -> None:
    answer = said(ask(router, [USER]))
    router.fail(503)
    assert ask(router, [USER, answer, USER]).status_code == 503
    assert "reason=full" in ask(router, [USER, answer, USER]).headers["x-antiphon-reuse"]


def test_turn_after_an_answer_that_raised_finds_nothing() -> None:
    router = FakeRouter().start()
    answer = said(ask(router, [USER]))
    router.answer = lambda call: call.body["nothing"]
    ask(router, [USER, answer, USER])
    router.answer = lambda call: "ok"
    assert "reason=lost" in ask(router, [USER, answer, USER]).headers["x-antiphon-reuse"]
    with pytest.raises(KeyError, match="nothing"):
        router.close()


def test_state_of_a_conversation_is_told() -> None:
    time = [100.0]
    with FakeRouter(clock=lambda: time[0]) as router:
        ask(router, [USER])
        time[0] += 2.5
        assert httpx.get(f"{router.base_url}/conversations/c").json() == {
            "id": "c",
            "object": "antiphon.conversation",
            "turns_in_flight": 0,
            "kept": [{"model": "m", "tokens": 23, "idle": 2.5, "lease": 60.0}],
        }


def test_completion_grows_by_its_text(router: FakeRouter) -> None:
    url = f"{router.base_url}/completions"
    first = httpx.post(url, json={"prompt": "One two three", "conversation_id": "c"})
    text = first.json()["choices"][0]["text"]
    second = httpx.post(url, json={"prompt": f"One two three{text} four", "conversation_id": "c"})
    assert second.headers["x-antiphon-reuse"] == "path=reuse; matched=4; reason=full; prompt=5; held=4"


def test_response_that_follows_another_one_is_appended_to_it(router: FakeRouter) -> None:
    url = f"{router.base_url}/responses"
    first = httpx.post(url, json={"input": "hello", "session_id": "c"}).json()
    body = {"input": "go on", "previous_response_id": first["id"]}
    reply = httpx.post(url, json=body)
    assert "path=append" in reply.headers["x-antiphon-reuse"]
    assert "reason=stored" in reply.headers["x-antiphon-reuse"]
    [kept] = httpx.get(f"{router.base_url}/conversations/c").json()["kept"]
    reuse = outcome_of(reply.headers)
    assert kept["tokens"] > (reuse.prompt or 0) > (reuse.matched or 0) > 0


def test_history_of_items_is_matched_in_full(router: FakeRouter) -> None:
    url = f"{router.base_url}/responses"
    router.replies(tool_call("stock", item="hinges"))
    asked = [{"role": "user", "content": "hello"}]
    items = httpx.post(url, json={"input": "hello", "session_id": "c"}).json()["output"]
    output = {"type": "function_call_output", "call_id": items[0]["call_id"], "output": "12"}
    reply = httpx.post(url, json={"input": [*asked, *items, output], "session_id": "c"})
    assert "path=reuse" in reply.headers["x-antiphon-reuse"]
    assert "reason=full" in reply.headers["x-antiphon-reuse"]
