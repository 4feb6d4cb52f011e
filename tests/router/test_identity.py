"""Whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon._stamp import IDENTITY_FIELDS, IDENTITY_HEADERS
from antiphon_server.router.gate.identity import Key, clean_id, identify

PLACES: list[tuple[str, str]] = [
    ("body", "conversation_id"),
    ("body", "session_id"),
    ("header", "x-conversation-id"),
    ("header", "x-session-id"),
    ("header", "x-dynamo-session-id"),
    ("header", "x-claude-code-session-id"),
    ("header", "x-session-affinity"),
    ("header", "session-id"),
    ("body", "prompt_cache_key"),
]


def stamped(places: list[tuple[str, str]]) -> str | None:
    body: dict[str, Any] = {name: f"body {name}" for kind, name in places if kind == "body"}
    headers = {name: f"header {name}" for kind, name in places if kind == "header"}
    key = identify(body, headers, "").key
    return key.conversation if key is not None else None


@pytest.mark.parametrize("index", range(len(PLACES)))
def test_earlier_place_wins(index: int) -> None:
    kind, name = PLACES[index]
    assert stamped(PLACES[index:]) == f"{kind} {name}"


def test_sdk_knows_every_place_so_it_adds_no_second_answer() -> None:
    """``prompt_cache_key`` stays out: it is read last, so a conversation's own id beside it wins."""
    assert {name for kind, name in PLACES if kind == "header"} == IDENTITY_HEADERS
    assert {name for kind, name in PLACES[:-1] if kind == "body"} == IDENTITY_FIELDS


@pytest.mark.parametrize("name", ["user", "safety_identifier"])
def test_a_person_is_not_a_conversation(name: str) -> None:
    assert identify({name: "someone"}, {"x-request-id": "r", "traceparent": "t"}, "").key is None


def test_key_is_tenant_model_salt_and_conversation() -> None:
    body = {"conversation_id": "c", "model": "m", "cache_salt": "s"}
    assert identify(body, {}, "t").key == Key("t", "m", "s", "c")


def test_turn_parent_and_final_are_read() -> None:
    headers = {"x-turn-id": "t", "x-parent-session-id": "p", "x-session-final": "True"}
    identity = identify({}, headers, "")
    assert (identity.turn, identity.parent, identity.final) == ("t", "p", True)
    assert not identify({}, {"x-session-final": "false"}, "").final


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128))
def test_printable_ids_stay(value: str) -> None:
    assert clean_id(value) == value


@pytest.mark.parametrize("value", ["ü", "a\nb", "x" * 129, "\x7f", "\ud800"])
def test_other_ids_are_hashed_to_hex(value: str) -> None:
    cleaned = clean_id(value)
    assert cleaned is not None
    assert len(cleaned) == 64
    assert set(cleaned) <= set("0123456789abcdef")
    assert cleaned == clean_id(value) != clean_id(value + "x")


@pytest.mark.parametrize("value", ["", None, True, 1.5, [], {}])
def test_what_is_no_id_is_skipped(value: object) -> None:
    assert clean_id(value) is None
    assert identify({"conversation_id": value, "session_id": "s"}, {}, "").key == Key("", "", "", "s")


def test_no_part_of_a_key_can_be_large() -> None:
    long = "x" * 1_000_000
    key, other = (
        identify({"conversation_id": end, "model": long + end, "cache_salt": long + end}, {}, "t").key
        for end in ("a", "b")
    )
    assert key is not None
    assert other is not None
    assert max(len(key.model), len(key.salt)) == 64
    assert key.model != other.model
