from __future__ import annotations

from typing import Any

import pytest

from antiphon_server.bench.replay.history import LEAST, History
from antiphon_server.bench.replay.ruler import Ruler, measured
from antiphon_server.bench.replay.script import Message, Turn
from antiphon_server.bench.timing import Answer

RULER = Ruler(characters=1.0, frame=10.0, head=5.0)
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "old", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT: Message = {"role": "tool", "tool_call_id": "old", "content": "42"}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def live(text: str = "live", *, tool: str | None = None) -> Answer:
    return Answer(tuple(range(len(text))), text, tool, "{}" if tool else "", (), "stop")


def after(history: History, *turns: Turn, answer: Answer | None = None, prompt: int = 0) -> list[Message]:
    messages: list[Message] = []
    for turn in turns:
        messages = history.begin(turn)
        history.end(answer or live(), prompt)
    return messages


def turn(*new: Message, **more: Any) -> Turn:
    return Turn(0.0, new, 4, **more)


def test_the_live_answer_stands_where_the_recorded_one_stood() -> None:
    messages = after(History(RULER), turn(user("one")), turn(user("two")))
    assert messages == [user("one"), {"role": "assistant", "content": "live"}, user("two")]


def test_a_last_message_is_cut_to_the_length_that_is_missing_its_end_stays() -> None:
    history = History(RULER)
    after(history, turn(user("a" * 200), length=50))
    assert len(history.messages[0]["content"]) == 50 - 5 - 10
    # 35 + 4 characters, head and two frames are there: a frame and 11 characters are missing.
    (*_, last) = history.begin(turn(user("b" * 100 + "c" * 11), length=90 - 5))
    assert last["content"] == "c" * 11


def test_lengths_follow_what_the_server_counted() -> None:
    history = History(RULER)
    after(history, turn(user("a" * 30)), prompt=100)
    (*_, last) = history.begin(turn(user("b" * 100), length=130))
    assert len(last["content"]) == 130 - (100 + 4) - 10


def test_what_is_new_never_vanishes() -> None:
    history = History(RULER)
    after(history, turn(user("a" * 100)))
    (*_, last) = history.begin(turn(user("b" * 50), length=20))
    assert last["content"] == "b" * LEAST


def test_a_cut_prompt_keeps_its_first_tokens_and_begins_anew_with_the_next_words() -> None:
    history = History(RULER)
    after(history, turn({"role": "system", "content": "s" * 40}, user("a" * 100)))
    messages = history.begin(turn(user("b" * 500), keeps_tokens=5 + 50 + 30, length=200))
    assert [message["role"] for message in messages] == ["system", "user"]
    # Users' messages in a row are one.
    assert messages[1]["content"] == "a" * 20 + "\n" + "b" * (200 - 85 - 10)


def test_messages_are_kept_by_their_number() -> None:
    history = History(RULER)
    after(history, turn(user("one")), turn(user("two")))
    messages = history.begin(
        turn({"role": "assistant", "content": "summary"}, user("three"), keeps_messages=1)
    )
    assert [message["content"] for message in messages] == ["one", "summary", "three"]


def test_a_result_that_no_live_call_asked_for_is_the_users_message() -> None:
    messages = after(History(RULER), turn(user("one")), turn(RESULT))
    assert messages[-1] == user("42")


def test_a_result_answers_the_live_call() -> None:
    history = History(RULER)
    messages = after(history, turn(user("one")), turn(RESULT), answer=live("", tool="g"))
    call, result = messages[-2:]
    assert call["tool_calls"][0]["function"] == {"name": "g", "arguments": "{}"}
    assert result == {**RESULT, "tool_call_id": call["tool_calls"][0]["id"]}


def test_a_result_of_a_recorded_call_stays_one() -> None:
    history = History(RULER)
    after(history, turn(user("one")))
    messages = history.begin(turn(user("again"), CALL, RESULT, RESULT, keeps_messages=0))
    assert messages == [user("again"), CALL, RESULT, user("42")]


def test_results_stay_as_recorded_where_that_is_wanted() -> None:
    assert after(History(RULER, tool_role=True), turn(user("one")), turn(RESULT))[-1] == RESULT


@pytest.mark.parametrize("characters", [1.0, 4.5])
def test_a_ruler_measures_text_and_frames(characters: float) -> None:
    def count(messages: list[dict[str, str]]) -> int:
        return 7 + sum(6 + round(len(message["content"]) / characters) for message in messages)

    ruler = measured(count)
    assert ruler.characters == pytest.approx(characters, rel=0.01)
    assert (ruler.frame, ruler.head) == pytest.approx((6, 7), abs=2)
    assert ruler.tokens("x" * 900) == pytest.approx(900 / characters, rel=0.01)
    assert ruler.text(100) == pytest.approx(100 * characters, abs=1)
