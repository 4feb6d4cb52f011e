"""What the kit reads from a request is what the router reads."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import antiphon
from antiphon.testing import Recorded

identity = pytest.importorskip("antiphon_server.router.gate.identity")

IDS = st.one_of(st.text(max_size=4), st.sampled_from(["a", "b" * 129, "é", " a ", "a/b"]))
VALUES = st.one_of(IDS, st.integers(0, 9), st.booleans(), st.none(), st.lists(st.integers(), max_size=1))
FIELDS = ["conversation_id", "session_id", "prompt_cache_key", "user", "model"]
HEADERS = [
    "x-conversation-id",
    "x-session-id",
    "x-dynamo-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "x-request-id",
    "x-turn-id",
    "x-parent-session-id",
    "x-dynamo-parent-session-id",
]
FINAL = st.dictionaries(
    st.sampled_from(["x-session-final", "x-dynamo-session-final"]), st.sampled_from(["", " True ", "1", "no"])
)


@given(
    st.dictionaries(st.sampled_from(FIELDS), VALUES),
    st.dictionaries(st.sampled_from(HEADERS), IDS.map(lambda text: text.encode().decode("latin-1"))),
    FINAL,
)
def test_identity_is_the_one_that_the_router_finds(
    body: dict[str, Any], headers: dict[str, str], final: dict[str, str]
) -> None:
    headers |= final
    found = identity.identify(body, headers, "tenant")
    call = Recorded("POST", "/v1/chat/completions", headers, body)
    assert call.conversation == (found.key.conversation if found.key else None)
    assert (call.turn, call.parent, call.final) == (found.turn, found.parent, found.final)


@pytest.mark.parametrize("id", ["a", "a/b c?d#e%", "é"])
def test_path_names_the_conversation_as_the_call_does(id: str) -> None:  # noqa: A002
    call = Recorded("POST", "/v1/chat/completions", {}, {"conversation_id": id})
    end = Recorded("DELETE", f"/v1/conversations/{quote(id, safe='')}")
    assert end.conversation == call.conversation == antiphon.conversation(id).id


def test_header_that_is_no_utf8_names_a_conversation_all_the_same() -> None:
    call = Recorded("POST", "/v1/chat/completions", {"x-session-id": "\xe9"})
    assert call.conversation == identity.clean_id("\xe9")


@pytest.mark.parametrize(
    ("path", "is_call"),
    [("/v1/chat/completions", True), ("/v1/messages?beta=true", True), ("/v1/embeddings", False)],
)
def test_model_calls_are_told_apart(path: str, is_call: bool) -> None:
    assert Recorded("POST", path).is_call == is_call
    assert not Recorded("GET", path).is_call


def test_body_that_is_no_object_has_no_fields() -> None:
    call = Recorded("POST", "/v1/chat/completions", {}, b"opaque")
    assert (call.fields, call.conversation, str(call)) == ({}, None, "POST /v1/chat/completions")
