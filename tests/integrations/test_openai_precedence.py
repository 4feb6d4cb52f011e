"""What the caller set wins, and stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import NOT_GIVEN, Omit, OpenAI

import antiphon
import antiphon_openai
from antiphon.testing import FakeRouter

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def client(antiphon_router: FakeRouter) -> Iterator[OpenAI]:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        yield antiphon_openai.wrap(client)


def test_other_extra_body_and_headers_are_kept_and_never_changed(
    antiphon_router: FakeRouter, client: OpenAI
) -> None:
    body, headers = {"cache_salt": "s"}, {"X-Mine": "1"}
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_body=body, extra_headers=headers)
    [call] = antiphon_router.calls()
    assert call.body == {**CHAT, "cache_salt": "s", "conversation_id": "c"}
    assert (call.headers["x-mine"], call.headers["x-session-id"]) == ("1", "c")
    assert (body, headers) == ({"cache_salt": "s"}, {"X-Mine": "1"})


def test_conversation_in_extra_body_wins(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_body={"conversation_id": "mine"})
    [call] = antiphon_router.calls()
    assert call.body["conversation_id"] == "mine"
    assert "x-session-id" not in call.headers
    assert "x-turn-id" in call.headers


def test_conversation_in_a_posted_body_wins(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, body={**CHAT, "conversation_id": "mine"})
    assert antiphon_router.calls()[0].body["conversation_id"] == "mine"


@pytest.mark.parametrize("name", ["X-Session-ID", "x-session-id", "X-SESSION-ID"])
def test_conversation_in_extra_headers_wins_whatever_its_case(
    antiphon_router: FakeRouter, client: OpenAI, name: str
) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_headers={name: "mine"})
    [call] = antiphon_router.calls()
    assert call.headers["x-session-id"] == "mine"
    assert "conversation_id" not in call.body


def test_conversation_in_the_clients_default_headers_wins(
    antiphon_router: FakeRouter, client: OpenAI
) -> None:
    with antiphon.conversation("c"):
        client.with_options(default_headers={"x-session-id": "mine"}).chat.completions.create(**CHAT)
    [call] = antiphon_router.calls()
    assert call.headers["x-session-id"] == "mine"
    assert "conversation_id" not in call.body


def test_turn_id_of_the_caller_wins(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_headers={"x-turn-id": "mine"})
    [call] = antiphon_router.calls()
    assert (call.headers["x-turn-id"], call.body["conversation_id"]) == ("mine", "c")


def test_end_carries_the_clients_own_headers_and_not_those_of_one_call(antiphon_router: FakeRouter) -> None:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k", default_headers={"X-Gate": "g"}) as client:
        antiphon_openai.wrap(client)
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT, extra_headers={"X-Once": "1"})
            client.chat.completions.create(**CHAT, extra_headers={"X-Once": "2"})
    assert len(antiphon_router.ends()) == 1
    end = antiphon_router.requests[-1]
    assert (end.headers["x-gate"], end.headers["authorization"]) == ("g", "Bearer k")
    assert "x-once" not in end.headers
    assert not any(name.startswith("x-stainless") for name in end.headers)


@pytest.mark.parametrize(
    "omitted", [{"extra_headers": {"X-SESSION-ID": Omit()}}, {"extra_body": {"conversation_id": Omit()}}]
)
def test_omitting_the_conversation_keeps_a_call_out_of_it(
    antiphon_router: FakeRouter, client: OpenAI, omitted: Any
) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, **omitted)
    [call] = antiphon_router.calls()
    assert "x-session-id" not in call.headers
    assert call.body == CHAT


def test_omitting_other_headers_of_the_client_still_works(
    antiphon_router: FakeRouter, client: OpenAI
) -> None:
    gated = client.with_options(default_headers={"X-Gate": "g"})
    with antiphon.conversation("c"):
        gated.chat.completions.create(**CHAT, extra_headers={"X-Gate": Omit(), "X-Turn-ID": Omit()})
    [call] = antiphon_router.calls()
    assert call.headers["x-session-id"] == "c"
    assert not {"x-gate", "x-turn-id"} & set(call.headers)


@pytest.mark.parametrize("nothing", [NOT_GIVEN, {}])
def test_headers_that_are_not_given_are_no_hindrance(
    antiphon_router: FakeRouter, client: OpenAI, nothing: Any
) -> None:
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, body=CHAT, options={"headers": nothing})
        client.chat.completions.create(**CHAT, extra_headers=nothing or None)
    assert [call.headers["x-session-id"] for call in antiphon_router.calls()] == ["c", "c"]
    assert [call.body["conversation_id"] for call in antiphon_router.calls()] == ["c", "c"]


def test_ids_that_no_header_can_carry_are_sent_as_one_hash(
    antiphon_router: FakeRouter, client: OpenAI
) -> None:
    with antiphon.conversation("gespräch\r\nX-Evil: 1", parent="père"):
        client.post("/chat/completions", cast_to=object, body=CHAT, options={"idempotency_key": "é"})
    [call] = antiphon_router.calls()
    assert call.body["conversation_id"] == call.headers["x-session-id"]
    for name in ("x-session-id", "x-parent-session-id", "x-turn-id"):
        assert len(bytes.fromhex(call.headers[name])) == 32
    assert "x-evil" not in call.headers


def test_extra_body_alone_is_no_json_object_to_stamp(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, options={"extra_json": {"model": "m"}})
        client.post("/chat/completions", cast_to=object, body=[CHAT])
    first, second = antiphon_router.calls()
    assert (first.body, second.body) == ({"model": "m"}, [CHAT])
    assert (first.headers["x-session-id"], second.headers["x-session-id"]) == ("c", "c")


def test_extra_body_wins_over_the_body_as_without_us(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, temperature=0, extra_body={"temperature": 1, "model": "n"})
    assert antiphon_router.calls()[0].body == {**CHAT, "temperature": 1, "model": "n", "conversation_id": "c"}


def test_previous_response_names_a_turn_and_is_left_as_it_is(
    antiphon_router: FakeRouter, client: OpenAI
) -> None:
    with antiphon.conversation("c"):
        first = client.responses.create(model="m", input="hello")
        client.responses.create(model="m", input="go on", previous_response_id=first.id)
    sent = antiphon_router.calls()[1]
    assert sent.body["previous_response_id"] == first.id
    assert (sent.body["conversation_id"], sent.headers["x-session-id"]) == ("c", "c")


@pytest.mark.parametrize("state", ["conv_1", {"id": "conv_1"}])
def test_state_that_the_server_keeps_is_left_beside_the_stamp(
    antiphon_router: FakeRouter, client: OpenAI, state: Any
) -> None:
    with antiphon.conversation("c"):
        client.responses.create(model="m", input="hello", conversation=state)
    [call] = antiphon_router.calls()
    assert call.body == {"model": "m", "input": "hello", "conversation": state, "conversation_id": "c"}


def test_session_of_the_environment_needs_no_sdk_and_is_not_fought_by_it(
    antiphon_router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", antiphon_router.base_url)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Session-ID: static\nX-Gate: g")
    with OpenAI(api_key="k") as client:
        client.chat.completions.create(**CHAT)
        antiphon_openai.wrap(client)
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT)
            client.with_options(timeout=60).chat.completions.create(**CHAT)
    for call in antiphon_router.calls():
        assert (call.headers["x-session-id"], call.headers["x-gate"]) == ("static", "g")
        assert call.body == CHAT
    assert len(antiphon_router.calls()) == 3
