"""What the caller set wins, and stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

import antiphon
import antiphon_openai
from doubles.router import Double

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def client(double: Double) -> Iterator[OpenAI]:
    with OpenAI(base_url=double.base_url, api_key="k") as client:
        yield antiphon_openai.wrap(client)


def test_other_extra_body_and_headers_are_kept_and_never_changed(double: Double, client: OpenAI) -> None:
    body, headers = {"cache_salt": "s"}, {"X-Mine": "1"}
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_body=body, extra_headers=headers)
    [call] = double.calls()
    assert call.body == {**CHAT, "cache_salt": "s", "conversation_id": "c"}
    assert (call.headers["x-mine"], call.headers["x-session-id"]) == ("1", "c")
    assert (body, headers) == ({"cache_salt": "s"}, {"X-Mine": "1"})


def test_conversation_in_extra_body_wins(double: Double, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_body={"conversation_id": "mine"})
    [call] = double.calls()
    assert call.body["conversation_id"] == "mine"
    assert "x-session-id" not in call.headers
    assert "x-turn-id" in call.headers


def test_conversation_in_a_posted_body_wins(double: Double, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, body={**CHAT, "conversation_id": "mine"})
    assert double.calls()[0].body["conversation_id"] == "mine"


@pytest.mark.parametrize("name", ["X-Session-ID", "x-session-id", "X-SESSION-ID"])
def test_conversation_in_extra_headers_wins_whatever_its_case(
    double: Double, client: OpenAI, name: str
) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_headers={name: "mine"})
    [call] = double.calls()
    assert call.headers["x-session-id"] == "mine"
    assert "conversation_id" not in call.body


def test_conversation_in_the_clients_default_headers_wins(double: Double, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.with_options(default_headers={"x-session-id": "mine"}).chat.completions.create(**CHAT)
    [call] = double.calls()
    assert call.headers["x-session-id"] == "mine"
    assert "conversation_id" not in call.body


def test_turn_id_of_the_caller_wins(double: Double, client: OpenAI) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_headers={"x-turn-id": "mine"})
    [call] = double.calls()
    assert (call.headers["x-turn-id"], call.body["conversation_id"]) == ("mine", "c")


def test_end_carries_the_clients_own_headers_and_not_those_of_one_call(double: Double) -> None:
    with OpenAI(base_url=double.base_url, api_key="k", default_headers={"X-Gate": "g"}) as client:
        antiphon_openai.wrap(client)
        with antiphon.conversation("c"):
            client.chat.completions.create(**CHAT, extra_headers={"X-Once": "1"})
            client.chat.completions.create(**CHAT, extra_headers={"X-Once": "2"})
    assert len(double.ends()) == 1
    end = double.requests[-1]
    assert (end.headers["x-gate"], end.headers["authorization"]) == ("g", "Bearer k")
    assert "x-once" not in end.headers
    assert not any(name.startswith("x-stainless") for name in end.headers)
