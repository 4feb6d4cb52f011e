"""The stream on its way: same bytes, minus what is ours, whatever the chunks."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.router.relay import Relay

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
