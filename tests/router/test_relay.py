"""The stream on its way: same bytes, minus what is ours, whatever the chunks."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.router.errors import EngineFailedError
from antiphon_server.router.legs import Surface
from antiphon_server.router.turn.relay import LONGEST_EVENT, Relay

HANDLE = {"remote_request_id": "r", "remote_block_ids": [[1, 2]]}


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunk(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, **more}]}


TRICKY = [
    'say "antiphon.handle" and "kv_transfer_params": {} and "token_ids": [1]',
    "data: [DONE]\n\n",
    '{"object": "antiphon.handle", "kv_transfer_params": {"a": 1}}',
    "ü\u2028\x00",
]
CONTENT = [event(chunk(text)) for text in [*TRICKY, "a", "b"]]
STREAM = b": ping\n\n" + b"".join(CONTENT)
HANDLE_EVENT = event({"object": "antiphon.handle", "kv_transfer_params": HANDLE})
DONE = event(b"[DONE]")


def relayed(data: bytes, cuts: list[int], token_ids: bool = False) -> tuple[bytes, Relay]:
    relay = Relay(token_ids)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    out = b"".join(relay.feed(data[a:b]) for a, b in pairwise(edges) if b > a)
    return out + relay.finish(), relay


@given(st.lists(st.integers(min_value=0), max_size=40))
def test_bytes_are_unchanged_but_for_the_handle(cuts: list[int]) -> None:
    out, relay = relayed(STREAM + HANDLE_EVENT + DONE, cuts)
    assert out == STREAM + DONE
    assert relay.handle == HANDLE
    assert relay.done


@given(st.lists(st.integers(min_value=0), max_size=40))
def test_crlf_streams_work_too(cuts: list[int]) -> None:
    data = (CONTENT[4] + HANDLE_EVENT + DONE).replace(b"\n", b"\r\n")
    out, relay = relayed(data, cuts)
    assert out == (CONTENT[4] + DONE).replace(b"\n", b"\r\n")
    assert relay.handle == HANDLE


@given(st.lists(st.integers(min_value=0), max_size=40))
def test_token_ids_go_unless_asked_for(cuts: list[int]) -> None:
    data = (
        event({**chunk("a", token_ids=[1]), "prompt_token_ids": [1, 2]})
        + event(chunk("b", token_ids=None))
        + DONE
    )
    out, _ = relayed(data, cuts)
    first, second, _ = out.split(b"\n\n", 2)
    assert json.loads(first[6:]) == chunk("a")
    assert json.loads(second[6:]) == chunk("b", token_ids=None)
    assert relayed(data, cuts, token_ids=True)[0] == data


def test_complete_events_leave_at_once() -> None:
    relay = Relay(token_ids=False)
    assert relay.feed(CONTENT[4] + CONTENT[5][:5]) == CONTENT[4]
    assert relay.feed(CONTENT[5][5:]) == CONTENT[5]


def test_handle_is_known_before_the_end_leaves() -> None:
    relay = Relay(token_ids=False)
    assert relay.feed(HANDLE_EVENT + DONE) == DONE
    assert relay.handle == HANDLE


def test_half_a_handle_never_leaves() -> None:
    out, _ = relayed(CONTENT[4] + HANDLE_EVENT[:-10], [])
    assert out == CONTENT[4]


def named(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + event(value)


def numbered(kind: str, number: int, **more: Any) -> bytes:
    return named({**more, "sequence_number": number, "type": kind})


DELTA = numbered("response.output_text.delta", 7, delta='event: response.completed "kv_transfer_params": {}')
RESPONSE = {"id": "r", "output": [], "kv_transfer_params": HANDLE, "x": 1.0}
COMPLETED = numbered("response.completed", 8, response=RESPONSE)
STOP = named({"type": "message_stop"})
BLOCK = named({"type": "content_block_delta", "delta": {"text": "event: message_stop"}})


@given(st.lists(st.integers(min_value=0), max_size=40))
def test_handle_inside_the_last_event_stays_here(cuts: list[int]) -> None:
    data = DELTA + COMPLETED
    relay = Relay(False, "responses")
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    out = b"".join(relay.feed(data[a:b]) for a, b in pairwise(edges) if b > a) + relay.finish()
    assert out.startswith(DELTA)
    head, _, payload = out[len(DELTA) :].partition(b"\n")
    assert head == b"event: response.completed"
    shown = {"id": "r", "output": [], "x": 1.0}
    assert json.loads(payload[6:]) == {"response": shown, "sequence_number": 8, "type": "response.completed"}
    assert relay.handle == HANDLE
    assert relay.done


def test_half_a_last_event_never_leaves() -> None:
    relay = Relay(False, "responses")
    assert relay.feed(DELTA + COMPLETED[:-20]) == DELTA
    assert relay.finish() == b""


def test_large_event_with_the_handle_is_not_passed_on_in_parts() -> None:
    response = {"output": "x" * LONGEST_EVENT, "kv_transfer_params": HANDLE}
    data = numbered("response.completed", 8, response=response)
    relay = Relay(False, "responses")
    out = b"".join(relay.feed(data[at : at + 2**20]) for at in range(0, len(data), 2**20)) + relay.finish()
    assert b"kv_transfer_params" not in out
    assert relay.handle == HANDLE


@pytest.mark.parametrize(
    ("surface", "before", "end"),
    [
        ("chat", CONTENT[0], DONE),
        ("completions", CONTENT[1], DONE),
        ("responses", DELTA, COMPLETED),
        ("messages", BLOCK, STOP),
        ("messages", BLOCK, HANDLE_EVENT + STOP),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_end_of_each_surface_is_seen(surface: Surface, before: bytes, end: bytes, together: bool) -> None:
    relay = Relay(False, surface)
    for part in [before + end] if together else [before, end]:
        assert not relay.done
        relay.feed(part)
    assert relay.done


def test_quoted_end_is_none() -> None:
    relay = Relay(False, "messages")
    relay.feed(BLOCK)
    assert not relay.done


def test_broken_stream_tells_why_in_its_own_form() -> None:
    error = EngineFailedError("gone")
    openai = {"error": {"message": "gone", "type": "engine_failed", "param": None, "code": 502}}
    assert json.loads(Relay(False, "chat").broken(error)[6:]) == openai
    relay = Relay(False, "responses")
    relay.feed(DELTA)
    name, _, data = relay.broken(error).partition(b"\n")
    assert name == b"event: error"
    told = {"type": "error", "code": "engine_failed", "message": "gone", "param": None, "sequence_number": 8}
    assert json.loads(data[6:]) == told
    name, _, data = Relay(False, "messages").broken(error).partition(b"\n")
    assert name == b"event: error"
    assert json.loads(data[6:]) == {"type": "error", "error": {"type": "api_error", "message": "gone"}}
