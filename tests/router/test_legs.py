"""Bodies of the legs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon_server.router.legs import (
    MalformedBodyError,
    decode_body,
    prefill_body,
    read_ask,
    read_filled,
    strip,
)
from antiphon_server.router.reasons import Reason

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "1.10 \u00e9"}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "cache_salt": "s",
    "session_id": "native",
}
LIMITS = {
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 500,
    "max_completion_tokens": 400,
    "min_tokens": 3,
    "stop": ["x"],
    "logprobs": True,
    "top_logprobs": 3,
    "seed": 7,
    "n": 1,
    "conversation_id": "c",
    "kv_transfer_params": {"remote_host": "evil"},
    "request_id": "mine",
}
HANDLE = {"remote_request_id": "r", "do_remote_prefill": True, "unknown": [1, {"a": 1.0}], "remote_host": "h"}


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_prefill_leg_asks_for_one_token_of_the_same_prompt() -> None:
    leg = json.loads(prefill_body(read_ask("chat", raw({**CHAT, **LIMITS})), None))
    params = leg.pop("kv_transfer_params")
    assert leg == {**CHAT, "max_tokens": 1, "max_completion_tokens": 1, "return_token_ids": True}
    assert params["do_remote_decode"] is True
    assert params["remote_block_ids"] is None


def test_completions_have_one_limit() -> None:
    leg = json.loads(
        prefill_body(read_ask("completions", raw({"prompt": "p", "max_completion_tokens": 3})), None)
    )
    assert (leg["max_tokens"], "max_completion_tokens" in leg) == (1, False)


def test_reuse_leg_carries_every_key_of_the_handle() -> None:
    leg = json.loads(prefill_body(read_ask("chat", raw(CHAT)), {**HANDLE, "do_remote_prefill": False}))
    assert leg["kv_transfer_params"] == {**HANDLE, "do_remote_prefill": False, "do_remote_decode": True}


@pytest.mark.parametrize(
    "reply", [{"prompt_token_ids": [1, 2]}, {"choices": [{"index": 0, "prompt_token_ids": [1, 2]}]}]
)
def test_decode_leg_carries_prefills_handle_and_ids(reply: dict[str, Any]) -> None:
    filled = read_filled(raw({"kv_transfer_params": HANDLE, **reply}))
    assert filled is not None
    assert filled.lease == "r"
    leg = json.loads(decode_body(read_ask("chat", raw({**CHAT, **LIMITS})), filled))
    assert leg["kv_transfer_params"] == {**HANDLE, "prompt_token_ids": [1, 2]}
    kept = {key: value for key, value in LIMITS.items() if key not in {"conversation_id", "request_id"}}
    assert leg == {**CHAT, **kept, "kv_transfer_params": leg["kv_transfer_params"]}


@pytest.mark.parametrize("data", [b"", b"oops", b"[]", raw({}), raw({"kv_transfer_params": None})])
def test_reply_without_handle_fills_nothing(data: bytes) -> None:
    assert read_filled(data) is None


def test_decode_alone_gets_no_handle() -> None:
    leg = json.loads(decode_body(read_ask("chat", raw({**CHAT, **LIMITS})), None))
    assert "kv_transfer_params" not in leg


@pytest.mark.parametrize("data", [b"", b"[1]", b"{", b"nope", b'{"a": NaN}', b"\xff"])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        read_ask("chat", data)


@pytest.mark.parametrize(
    "data", [b'{"model": "\xff"}', b'{"conversation_id": "\xff"}', b'{"n": "\xff"}', b'{"n": 1e999}']
)
def test_fields_that_cannot_be_read_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedBodyError):
        read_ask("chat", data)


@pytest.mark.parametrize("several", [2, "2", 2.0])
def test_several_answers_are_not_handed_over_however_their_number_is_written(several: Any) -> None:
    assert read_ask("chat", raw({"messages": [], "n": several})).alone is Reason.MULTIPLE
    assert read_ask("chat", raw({"messages": [], "n": 1})).alone is None


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("one", None),
        ([1, 2], None),
        (["a", "b"], Reason.BATCH),
        ([[1], [2]], Reason.BATCH),
        ([" one"], Reason.BATCH),
    ],
)
def test_batches_are_not_handed_over(prompt: Any, reason: Reason | None) -> None:
    assert read_ask("completions", raw({"prompt": prompt})).alone is reason


@pytest.mark.parametrize("name", ["kv_transfer_params", "kv_transfer\\u005fparams", "ec_transfer_params"])
@pytest.mark.parametrize("several", [1, 2])
def test_engines_own_fields_do_not_come_in_by_extra_arguments(name: str, several: int) -> None:
    data = b'{"n": %d, "vllm_xargs": {"%s": "junk", "mine": 1}}' % (several, name.encode())
    ask = read_ask("chat", data)
    for leg in (prefill_body(ask, None), decode_body(ask, None)):
        assert json.loads(leg)["vllm_xargs"] == {"mine": 1}


@pytest.mark.parametrize("extra", [b"null", b"{}"])
def test_empty_extra_arguments_stay(extra: bytes) -> None:
    ask = read_ask("chat", b'{"vllm_xargs": %s}' % extra)
    assert json.loads(decode_body(ask, None)) == {"vllm_xargs": json.loads(extra)}


def test_reply_is_stripped_only_where_it_must() -> None:
    plain = b'{"id" : "x",  "choices": []}'
    assert strip(plain, token_ids=False) == (plain, None)
    reply = {
        "id": "x",
        "choices": [{"token_ids": [1], "text": "1.0"}],
        "prompt_token_ids": [1],
        "kv_transfer_params": HANDLE,
    }
    body, handle = strip(raw(reply), token_ids=False)
    assert json.loads(body) == {"id": "x", "choices": [{"text": "1.0"}]}
    assert handle == HANDLE
    body, _ = strip(raw(reply), token_ids=True)
    assert json.loads(body) == {key: value for key, value in reply.items() if key != "kv_transfer_params"}
