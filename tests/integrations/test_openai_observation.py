"""What is read of the replies, for the conversation's statistics."""

from __future__ import annotations

import functools
import gc
import json
import logging
import weakref
from collections.abc import Iterator
from typing import Any, cast

import httpx
import openai
import pytest
from openai import OpenAI
from openai._base_client import SyncAPIClient

import antiphon
import antiphon_openai
from antiphon._observe import Exchange
from antiphon.testing import FakeRouter
from antiphon_openai import _reply, _wrap

CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Clock:
    """Stands for the module ``time``."""

    def __init__(self, *readings: float) -> None:
        self.readings = iter(readings)

    def perf_counter(self) -> float:
        return next(self.readings)


@pytest.fixture
def client(antiphon_router: FakeRouter) -> Iterator[OpenAI]:
    with OpenAI(base_url=antiphon_router.base_url, api_key="k") as client:
        yield antiphon_openai.wrap(client)


Seen = list[tuple[str, Exchange]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen: Seen = []
    monkeypatch.setattr(_reply, "observe", lambda conversation, e: seen.append((conversation.id, e)))
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.001)
    return seen


def test_whole_reply_is_observed_with_what_was_sent_and_what_came(
    antiphon_router: FakeRouter, client: OpenAI, seen: Seen
) -> None:
    with antiphon.conversation("c"):
        said = client.chat.completions.create(**CHAT)
    [(conversation, exchange)] = seen
    [call] = antiphon_router.calls()
    assert (conversation, exchange.turn) == ("c", call.headers["x-turn-id"])
    assert json.loads(exchange.request or b"") == call.body
    assert json.loads(exchange.reply or b"")["id"] == said.id
    assert exchange.headers["content-type"] == "application/json"
    assert exchange.ttft is None


def test_stream_is_observed_when_its_head_has_come_and_is_left_to_the_user(
    antiphon_router: FakeRouter, client: OpenAI, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_wrap, "time", Clock(10.0, 12.5))
    with antiphon.conversation("c"):
        stream = client.chat.completions.create(**CHAT, stream=True)
    assert type(stream) is openai.Stream
    [(_, exchange)] = seen
    assert (exchange.reply, exchange.ttft) == (None, 2.5)
    assert len(list(stream)) > 2


def test_time_to_the_head_is_that_of_the_attempt_that_succeeded(
    antiphon_router: FakeRouter, client: OpenAI, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_wrap, "time", Clock(10.0, 20.0, 21.0))
    antiphon_router.statuses.append(500)
    with antiphon.conversation("c"):
        list(client.chat.completions.create(**CHAT, stream=True))
    assert [exchange.ttft for _, exchange in seen] == [1.0]


def test_raw_reply_that_the_user_reads_is_not_read_for_him(
    antiphon_router: FakeRouter, client: OpenAI, seen: Seen
) -> None:
    create = client.chat.completions.with_streaming_response.create
    with antiphon.conversation("c"), create(**CHAT) as response:
        [(_, exchange)] = seen
        assert (exchange.reply, exchange.ttft) == (None, None)
        assert b'"chat.completion"' in b"".join(response.iter_bytes())


def test_multipart_body_is_not_read(antiphon_router: FakeRouter, client: OpenAI, seen: Seen) -> None:
    options: Any = {"headers": {"Content-Type": "multipart/form-data"}}
    with antiphon.conversation("c"):
        client.post("/chat/completions", cast_to=object, body={}, files={"f": b"opaque"}, options=options)
    [(_, exchange)] = seen
    assert exchange.request is None
    assert exchange.reply is not None


def test_failed_call_is_not_observed(antiphon_router: FakeRouter, client: OpenAI, seen: Seen) -> None:
    antiphon_router.statuses.append(400)
    with antiphon.conversation("c"), pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**CHAT)
    assert seen == []


@pytest.mark.parametrize(
    "named", [{"extra_body": {"conversation_id": "mine"}}, {"extra_headers": {"x-session-id": "mine"}}]
)
def test_call_to_a_conversation_of_the_callers_is_not_observed(
    antiphon_router: FakeRouter, client: OpenAI, seen: Seen, named: Any
) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, **named)
    assert seen == []


def test_what_is_not_stamped_is_not_observed(antiphon_router: FakeRouter, client: OpenAI, seen: Seen) -> None:
    client.chat.completions.create(**CHAT)
    with antiphon.conversation("c"):
        client.models.list()
    assert seen == []


def test_call_is_observed_under_the_conversation_that_it_was_stamped_with(seen: Seen) -> None:
    other = antiphon.conversation("other")

    def answer(request: httpx.Request) -> httpx.Response:
        other.__enter__()  # by the time that the reply is here, other code surrounds it
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "choices": []})

    transport = cast("Any", httpx.Client(transport=httpx.MockTransport(answer)))
    client = antiphon_openai.wrap(OpenAI(base_url="http://r/v1", api_key="k", http_client=transport))
    with client, antiphon.conversation("c", keep=True):
        client.chat.completions.create(**CHAT)
        assert antiphon.current() is other
        other.__exit__(None, None, None)
    assert [conversation for conversation, _ in seen] == ["c"]


def test_call_is_observed_where_a_later_subclass_copies_its_options(
    antiphon_router: FakeRouter, client: OpenAI, seen: Seen
) -> None:
    kind: Any = type(client)

    def prepare(self: Any, options: Any) -> Any:
        return kind._prepare_options(self, options).model_copy()

    client.__class__ = type("Later", (kind,), {"_prepare_options": prepare})
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT)
    assert [conversation for conversation, _ in seen] == ["c"]


def test_stream_that_a_mocked_transport_holds_is_no_whole_reply(seen: Seen) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b"data: [DONE]\n\n")

    transport = cast("Any", httpx.Client(transport=httpx.MockTransport(answer)))
    client = antiphon_openai.wrap(OpenAI(base_url="http://r/v1", api_key="k", http_client=transport))
    with client, antiphon.conversation("c", keep=True):
        list(client.chat.completions.create(**CHAT, stream=True))
    assert [exchange.reply for _, exchange in seen] == [None]


def test_turn_id_is_the_one_sent(antiphon_router: FakeRouter, client: OpenAI, seen: Seen) -> None:
    with antiphon.conversation("c"):
        client.chat.completions.create(**CHAT, extra_headers={"x-turn-id": "mine"})
        antiphon_openai.wrap(client, wire=antiphon.Wire(conversation_header="X-Session-ID"))
        client.chat.completions.create(**CHAT)
    assert [exchange.turn for _, exchange in seen] == ["mine", None]


def test_failing_observation_costs_no_call(
    antiphon_router: FakeRouter,
    client: OpenAI,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("statistics are broken")

    monkeypatch.setattr(_reply, "observe", fail)
    with caplog.at_level(logging.DEBUG, "antiphon"), antiphon.conversation("c"):
        assert client.chat.completions.create(**CHAT).id
        assert len(list(client.chat.completions.create(**CHAT, stream=True))) > 2
    assert [record.message for record in caplog.records] == ["a call's reply was not observed"] * 2


def test_openai_that_processes_replies_elsewhere_is_stamped_and_not_observed(
    antiphon_router: FakeRouter, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = SyncAPIClient._process_response

    def elsewhere(self: Any, name: str) -> Any:
        if name == "_process_response":
            return functools.partial(process, self)
        raise AttributeError(name)

    class Other(OpenAI):
        """Not wrapped before, when openai had the method."""

    monkeypatch.delattr(SyncAPIClient, "_process_response")
    monkeypatch.setattr(SyncAPIClient, "__getattr__", elsewhere, raising=False)
    with Other(base_url=antiphon_router.base_url, api_key="k") as client, antiphon.conversation("c"):
        assert antiphon_openai.wrap(client).chat.completions.create(**CHAT).id
    assert antiphon_router.calls()[0].body["conversation_id"] == "c"
    assert seen == []


def test_openai_that_hands_replies_over_otherwise_costs_no_call(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "antiphon"):
        _reply.observed({"reply": object()}, 1.0)
    assert [record.message for record in caplog.records] == ["a call's reply was not observed"]


def test_nothing_of_a_reply_is_kept(antiphon_router: FakeRouter, client: OpenAI) -> None:
    with antiphon.conversation("c", keep=True):
        raw = client.chat.completions.with_raw_response.create(**CHAT)
        stream = client.chat.completions.create(**CHAT, stream=True)
        list(stream)
    gone = [weakref.ref(raw.http_response), weakref.ref(stream.response), weakref.ref(raw.http_request)]
    del raw, stream
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_openais_own_debug_log_prints_stamped_calls(
    antiphon_router: FakeRouter, client: OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "openai"), antiphon.conversation("c"):
        client.chat.completions.create(**CHAT)
    assert caplog.records
    assert antiphon_router.calls()[0].body["conversation_id"] == "c"
