"""What is kept of a reply, and when it goes back. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("langchain_openai")

from antiphon_langgraph._verbatim import keep, restore

Message = dict[str, Any]
ORIGIN = "http://router/v1 m"


def called(arguments: str, call_id: str = "c1", **more: Any) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}, **more}


def message(content: Any = None, *calls: Message, **more: Any) -> Message:
    made = {"tool_calls": list(calls)} if calls else {}
    return {"role": "assistant", "content": content, **made, **more}


def back(raw: Message, default: Message, sent: Message | None = None, origin: str = ORIGIN) -> Message:
    """What is sent for ``raw``, when LangChain would send ``sent`` (by default what it made at first)."""
    return restore(default if sent is None else sent, keep(raw, default, ORIGIN), origin)


def test_nothing_is_kept_where_nothing_is_lost() -> None:
    call = called('{"city": "Rome"}')
    empty: Message = {"refusal": None, "tool_calls": [], "reasoning": "", "details": {}}
    assert keep(message("Hello"), message("Hello"), ORIGIN) is None
    assert keep({**message("Hello"), **empty}, message("Hello"), ORIGIN) is None
    assert keep(message(None, call), message(None, call), ORIGIN) is None
    assert restore(message("Hello"), None, ORIGIN) == message("Hello")


@pytest.mark.parametrize(
    ("raw", "default"),
    [
        (message(None, called('{"city":"Z\\u00fcrich"}')), message(None, called('{"city": "Zürich"}'))),
        (message("", called("{}")), message(None, called("{}"))),
        (message("Hi", reasoning="I greet."), message("Hi")),
        (message("Hi", reasoning_content="I greet."), message("Hi")),
        (message("Hi", refusal="No"), message("Hi")),
        (message("Hi", details=[{"a": 1}], depth=0, sure=False), message("Hi")),
        (message(None, called("{}", extra={"thought": "x"})), message(None, called("{}"))),
        (message([{"type": "thinking", "thinking": "x"}]), message([])),
    ],
    ids=["arguments", "empty", "reasoning", "reasoning_content", "refusal", "unknown", "call", "blocks"],
)
def test_what_langchain_loses_goes_back_as_it_came(raw: Message, default: Message) -> None:
    assert back(raw, default) == raw


def test_fields_that_only_replies_have_stay_behind() -> None:
    raw = message(None, called("{ }", index=0, parsed_arguments={}), annotations=[1], audio={"data": "x"})
    assert back(raw, message(None, called("{}"))) == message(None, called("{ }"))
    assert keep(message("Hi", function_call={"name": "f"}, parsed={"a": 1}), message("Hi"), ORIGIN) is None


def test_null_content_is_not_sent_where_langchain_sends_text() -> None:
    assert back(message(None, reasoning="x"), message("")) == message("", reasoning="x")


@pytest.mark.parametrize(
    "edited",
    [
        message("Bye"),
        message("Hi", called("{}")),
        message([{"type": "text", "text": "H"}, {"type": "text", "text": "o"}]),
        message([{"type": "text", "text": "Hi"}, {"type": "image"}]),
        message([{"type": "text", "text": None}]),
    ],
)
def test_an_edited_message_goes_as_edited(edited: Message) -> None:
    assert back(message("Hi", reasoning="x"), message("Hi"), edited) == edited


@pytest.mark.parametrize(
    "edited",
    [
        message(),
        message(None, called('{"a": 2}')),
        message(None, called('{"a": 1}', "c2")),
        message(None, *[called('{"a": 1}')] * 2),
    ],
    ids=["removed", "arguments", "id", "added"],
)
def test_edited_calls_go_as_edited(edited: Message) -> None:
    assert back(message(None, called('{"a":1}')), message(None, called('{"a": 1}')), edited) == edited


def test_a_name_and_the_form_of_the_content_are_no_edits() -> None:
    raw, default = message("Hi", reasoning="x"), message("Hi")
    assert back(raw, default, {**default, "name": "agent"}) == {**raw, "name": "agent"}
    blocks = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert back(raw, default, {**default, "content": blocks}) == {**raw, "content": blocks}
    assert back(message(None, reasoning="x"), message(""), message([])) == message([], reasoning="x")


def test_another_model_or_server_gets_the_default() -> None:
    default = message("Hi")
    assert back(message("Hi", reasoning="x"), default, origin="http://router/v1 other") == default


def test_mended_calls_stay_mended() -> None:
    """A server that parses arguments may refuse, for ever, a history with those that LangChain could mend."""
    raw, mended = called('{"text": "a\nb"}'), called('{"text": "a\\nb"}')
    assert keep(message(None, raw), message(None, mended), ORIGIN) is None
    both = back(message(None, raw, reasoning="x"), message(None, mended))
    assert both == message(None, mended, reasoning="x")


def test_broken_calls_go_back_in_the_order_they_came() -> None:
    broken, good = called('{"city": Ro', "c1"), called("{}", "c2")
    assert back(message(None, broken, good), message(None, good, broken)) == message(None, broken, good)


def test_calls_without_the_usual_fields_are_compared_too() -> None:
    odd: Message = {"type": "function"}
    assert keep(message(None, odd), message(None, called("{}")), ORIGIN) is None


@pytest.mark.parametrize(
    "kept",
    [None, 3, "", "no json", "[]", "3", '{"raw": {}}', '{"of": "x"}', '{"of": "x", "raw": 3}', "[" * 100_000],
)
def test_what_does_not_read_as_kept_changes_nothing(kept: object) -> None:
    assert restore(message("Hi"), kept, ORIGIN) == message("Hi")


def test_kept_of_the_wrong_shape_changes_nothing() -> None:
    kept = json.loads(keep(message("Hi", reasoning="x"), message("Hi"), ORIGIN) or "")
    for shape in (json.dumps({**kept, "raw": 3}), json.dumps({"of": kept["of"]}), json.dumps(kept) * 2):
        assert restore(message("Hi"), shape, ORIGIN) == message("Hi")
