from __future__ import annotations

import pytest

import antiphon
from antiphon import Wire, stamp

CHILD = antiphon.conversation("c", parent="p")


def test_default_wire_stamps_body_and_headers() -> None:
    made = stamp(CHILD, turn="t1")
    assert made.body == {"conversation_id": "c"}
    assert made.headers == {"X-Session-ID": "c", "X-Parent-Session-ID": "p", "X-Turn-ID": "t1"}


def test_conversation_without_a_parent_names_none() -> None:
    assert stamp(antiphon.conversation("c"), turn="t").headers == {"X-Session-ID": "c", "X-Turn-ID": "t"}


def test_headers_only_wire_leaves_the_body_alone() -> None:
    made = stamp(CHILD, turn="t", wire="headers_only")
    assert made.body == {}
    assert made.headers == {"X-Session-ID": "c", "X-Parent-Session-ID": "p", "X-Turn-ID": "t"}


def test_dynamo_wire_uses_dynamos_names() -> None:
    made = stamp(CHILD, turn="t", wire=Wire.dynamo)
    assert made.body == {}
    assert made.headers == {"X-Dynamo-Session-ID": "c", "X-Dynamo-Parent-Session-ID": "p", "X-Turn-ID": "t"}


def test_own_wire_uses_own_names() -> None:
    wire = Wire(conversation_field="session_id", conversation_header="X-SMG-Routing-Key")
    made = stamp(CHILD, wire=wire)
    assert made.body == {"session_id": "c"}
    assert made.headers == {"X-SMG-Routing-Key": "c"}
    assert stamp(CHILD, wire=wire, headers=["x-smg-routing-key"]) == antiphon.Stamp()


def test_only_the_router_wire_tells_ends() -> None:
    assert [wire.ends for wire in (Wire.default, Wire.headers_only, Wire.dynamo)] == [True, False, False]


def test_fresh_turn_id_is_made_where_none_is_given() -> None:
    first, second = stamp(CHILD).headers["X-Turn-ID"], stamp(CHILD).headers["X-Turn-ID"]
    assert first
    assert first != second


def test_turn_id_that_http_cannot_carry_is_hashed() -> None:
    assert len(stamp(CHILD, turn="tür\n1").headers["X-Turn-ID"]) == 64


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["x-session-id"], []),
        (["X-SESSION-ID"], []),
        (["X-Conversation-Id"], []),
        (["session-id"], []),
        ([], ["conversation_id"]),
        ([], ["session_id"]),
    ],
)
def test_call_that_names_its_conversation_gets_no_second_answer(headers: list[str], body: list[str]) -> None:
    made = stamp(CHILD, turn="t", headers=headers, body=body)
    assert made.headers == {"X-Turn-ID": "t"}
    assert made.body == {}


def test_set_turn_and_parent_win_whatever_their_case() -> None:
    made = stamp(CHILD, headers=["x-turn-id", "X-PARENT-SESSION-ID"], body=["messages", "prompt_cache_key"])
    assert made.headers == {"X-Session-ID": "c"}
    assert made.body == {"conversation_id": "c"}


def test_unknown_preset_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(antiphon.WireError, match="'dynamite': use one of default, dynamo, headers_only"):
        stamp(CHILD, wire="dynamite")


@pytest.mark.parametrize("name", ["", "a b", "X-Ä", "a\r\nb"])
def test_header_name_that_http_cannot_carry_is_an_error(name: str) -> None:
    with pytest.raises(antiphon.WireError, match="cannot be the name of an HTTP header"):
        Wire(conversation_header=name)
