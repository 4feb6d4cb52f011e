"""Bodies of the legs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon_server.router.legs import (
    FORMS,
    Failure,
    MalformedBodyError,
    Surface,
    append_body,
    begun,
    decode_body,
    failure,
    prefill_body,
    read_ask,
    read_filled,
    salted,
    strip,
)
from antiphon_server.router.plan.reasons import Reason

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


def test_reply_that_nests_too_deeply_is_no_reply_of_ours() -> None:
    deep = b"[" * 100_000
    filled = b'{"kv_transfer_params":' + deep
    assert read_filled(filled) is None
    assert strip(filled, True) == (filled, None)
    assert failure("chat", b'data: {"error":' + deep + b"\n\n") is None


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


TOOLS = [{"type": "function", "name": "f", "parameters": {}}]
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "i",
    "input": [{"role": "user", "content": "1.10 \u00e9"}],
    "tools": TOOLS,
    "tool_choice": "required",
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_object"}},
    "cache_salt": "s",
}
RESPONSES_LIMITS = {
    "stream": True,
    "max_output_tokens": 500,
    "stop": ["x"],
    "top_logprobs": 3,
    "include": ["message.output_text.logprobs"],
    "background": False,
    "store": True,
    "seed": 7,
    "metadata": {"a": "b"},
    "conversation_id": "c",
    "request_id": "mine",
    "kv_transfer_params": {"remote_host": "evil"},
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "system": "i",
    "messages": [{"role": "user", "content": "1.10 \u00e9"}],
    "tools": [{"name": "f", "input_schema": {}}],
    "thinking": {"type": "disabled"},
    "cache_salt": "s",
}
MESSAGES_LIMITS = {
    "stream": True,
    "max_tokens": 500,
    "stop_sequences": ["x"],
    "metadata": {"user_id": "u"},
    "conversation_id": "c",
    "kv_transfer_params": {"remote_host": "evil"},
}


def test_prefill_leg_of_responses_asks_for_one_token_and_for_the_ids_and_stores_nothing() -> None:
    leg = json.loads(prefill_body(read_ask("responses", raw({**RESPONSES, **RESPONSES_LIMITS})), None))
    params = leg.pop("kv_transfer_params")
    added = {"max_output_tokens": 1, "enable_response_messages": True, "store": False}
    assert leg == {**RESPONSES, **added}
    assert params["do_remote_decode"] is True


def test_ids_of_responses_are_in_their_first_message() -> None:
    messages = [{"type": "raw_message_tokens", "message": "", "tokens": [1, 2]}]
    filled = read_filled(raw({"kv_transfer_params": HANDLE, "input_messages": messages, "output": []}))
    assert filled is not None
    leg = json.loads(decode_body(read_ask("responses", raw(RESPONSES)), filled))
    assert leg == {**RESPONSES, "kv_transfer_params": {**HANDLE, "prompt_token_ids": [1, 2]}}


@pytest.mark.parametrize("messages", [None, [], [{"role": "user"}], [{"tokens": [1]}, {"tokens": [2]}]])
def test_ids_that_are_not_one_prompts_are_left(messages: Any) -> None:
    filled = read_filled(raw({"kv_transfer_params": HANDLE, "input_messages": messages}))
    assert filled is not None
    assert filled.token_ids is None


def test_prefill_leg_of_messages_asks_for_one_token() -> None:
    leg = json.loads(prefill_body(read_ask("messages", raw({**MESSAGES, **MESSAGES_LIMITS})), None))
    assert leg.pop("kv_transfer_params")["do_remote_decode"] is True
    assert leg == {**MESSAGES, "max_tokens": 1}


@pytest.mark.parametrize(
    ("choice", "kept"),
    [({"type": "tool", "name": "f"}, False), ({"type": "any"}, False), ({"type": "none"}, True)],
)
def test_prefill_leg_of_messages_forces_no_call(choice: dict[str, str], kept: bool) -> None:
    ask = read_ask("messages", raw({**MESSAGES, "max_tokens": 5, "tool_choice": choice}))
    assert ("tool_choice" in json.loads(prefill_body(ask, None))) is kept
    assert json.loads(decode_body(ask, None))["tool_choice"] == choice


def test_decode_leg_of_messages_carries_the_handle_alone() -> None:
    filled = read_filled(raw({"type": "message", "content": [], "kv_transfer_params": HANDLE}))
    leg = json.loads(decode_body(read_ask("messages", raw({**MESSAGES, **MESSAGES_LIMITS})), filled))
    kept = {key: value for key, value in MESSAGES_LIMITS.items() if key != "conversation_id"}
    assert leg == {**MESSAGES, **kept, "kv_transfer_params": HANDLE}


@pytest.mark.parametrize("surface", FORMS)
def test_append_leg_asks_decode_for_a_handle_of_its_own(surface: Surface) -> None:
    ask = read_ask(
        surface, raw({"model": "m", "kv_transfer_params": {"remote_host": "evil"}, "stream": True})
    )
    leg = json.loads(append_body(ask))
    assert leg.pop("kv_transfer_params") == {"do_remote_decode": False, "do_remote_prefill": False}
    assert leg == {"model": "m", "stream": True}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, None),
        ({"previous_response_id": "resp_1"}, Reason.STORED),
        ({"background": True}, Reason.BACKGROUND),
        ({"background": False, "previous_response_id": None, "prompt": None}, None),
        ({"prompt": {"id": "p"}}, Reason.TEMPLATE),
        ({"tools": [*TOOLS, {"type": "custom", "name": "c"}]}, None),
        ({"tools": [*TOOLS, {"type": "mcp", "server_label": "x"}]}, Reason.BUILTIN),
        ({"tools": [{"type": "web_search_preview"}]}, Reason.BUILTIN),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, Reason.MEDIA),
        ({"input": [{"type": "function_call_output", "output": [{"type": "input_file"}]}]}, Reason.MEDIA),
        ({"input": [{"role": "user", "content": 'the "input_image" word'}]}, None),
    ],
)
def test_responses_that_are_not_handed_over(body: dict[str, Any], reason: Reason | None) -> None:
    assert read_ask("responses", raw({"input": "hi", **body})).alone is reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hi", None),
        ([{"type": "text", "text": 'an "image" and a "document"'}], None),
        ([{"type": "tool_use", "input": {"kind": "image", "type": "document"}}], None),
        ([{"type": "image", "source": {}}], Reason.MEDIA),
        ([{"type": "tool_result", "content": [{"type": "image"}]}], Reason.MEDIA),
    ],
)
def test_messages_that_are_not_handed_over(content: Any, reason: Reason | None) -> None:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    assert read_ask("messages", raw(body)).alone is reason


@pytest.mark.parametrize("surface", FORMS)
def test_a_tenants_salt_replaces_the_clients_on_all_legs(surface: Surface) -> None:
    data = raw({"model": "m", "cache_salt": "client's"})
    for ask in (read_ask(surface, data, salt="ours"), salted(read_ask(surface, data), "ours")):
        for leg in (prefill_body(ask, None), decode_body(ask, None), append_body(ask)):
            assert json.loads(leg)["cache_salt"] == "ours"
        assert ask.named["cache_salt"] == "client's"


@pytest.mark.parametrize(
    ("surface", "body", "limit"),
    [
        ("chat", {"max_tokens": 5}, 5),
        ("chat", {"max_tokens": 5, "max_completion_tokens": 4}, 4),
        ("chat", {}, None),
        ("chat", {"max_tokens": None}, None),
        ("completions", {}, 16),
        ("responses", {"max_output_tokens": 7, "max_tokens": 3}, 7),
        ("messages", {"max_tokens": 9}, 9),
    ],
)
def test_limit_of_the_answer_is_read(surface: Surface, body: dict[str, Any], limit: int | None) -> None:
    assert read_ask(surface, raw(body)).answer_limit == limit


def test_events_that_hold_a_reply_are_stripped_inside() -> None:
    inner: dict[str, Any] = {
        "id": "r",
        "output": [],
        "kv_transfer_params": HANDLE,
        "ec_transfer_params": None,
        "x": 1.0,
    }
    event = {"response": inner, "sequence_number": 3, "type": "response.completed"}
    body, handle = strip(raw(event), token_ids=False)
    assert handle == HANDLE
    assert json.loads(body) == {**event, "response": {"id": "r", "output": [], "x": 1.0}}


def sse(*events: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return b"".join(head.encode() + b"data: " + raw(event) + b"\n\n" for event in events)


ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
CREATED = sse({"type": "response.created"}, name="response.created")
PROGRESS = sse({"type": "response.in_progress"}, name="response.in_progress")
STARTED = sse({"type": "message_start"}, name="message_start")
ADDED = sse({"type": "response.output_item.added"}, name="response.output_item.added")
BLOCK = sse({"type": "content_block_start"}, name="content_block_start")
OPENAI = {"error": {"message": "no", "type": "InternalServerError", "param": None, "code": 500}}
ANTHROPIC = {"type": "error", "error": {"type": "internal_error", "message": "no"}}


@pytest.mark.parametrize(
    ("surface", "opening", "first"),
    [
        ("chat", ROLE, sse({"choices": []})),
        ("chat", b": ping\n\n" + ROLE, b"data: [DONE]\n\n"),
        ("completions", b"", sse({"choices": []})),
        ("responses", CREATED + PROGRESS, ADDED),
        ("messages", STARTED, BLOCK),
    ],
)
def test_stream_has_begun_with_the_first_event_that_tells_something(
    surface: Surface, opening: bytes, first: bytes
) -> None:
    assert not any(begun(surface, opening[:cut]) for cut in range(len(opening) + 1))
    assert not begun(surface, opening + first[:-1])
    assert begun(surface, opening + first)
    assert failure(surface, opening + first) is None


@pytest.mark.parametrize(
    ("surface", "data", "payload"),
    [
        ("chat", ROLE + sse(OPENAI), OPENAI),
        ("chat", ROLE + sse(OPENAI) + b"data: [DONE]\n\n", OPENAI),
        ("completions", sse(OPENAI), OPENAI),
        ("messages", STARTED + sse(ANTHROPIC, name="error"), ANTHROPIC),
    ],
)
def test_error_in_place_of_a_stream_is_seen(surface: Surface, data: bytes, payload: Any) -> None:
    found = failure(surface, data)
    assert isinstance(found, Failure)
    assert (found.status, json.loads(found.payload)) == (500, payload)


def test_error_that_is_the_clients_is_relayed() -> None:
    assert failure("chat", ROLE + sse({"error": {"message": "no", "code": 400}})) is None


@pytest.mark.parametrize(
    "limit",
    [
        {},
        {"max_tokens": None},
        {"max_tokens": 500},
        {"max_completion_tokens": 400},
        {"max_output_tokens": 300},
        {"max_tokens": 500, "max_completion_tokens": 400, "min_tokens": 9, "ignore_eos": True},
    ],
)
@pytest.mark.parametrize("surface", FORMS)
def test_prefill_leg_is_one_token_however_the_limit_is_written(
    surface: Surface, limit: dict[str, Any]
) -> None:
    # https://github.com/llm-d/llm-d-router/issues/400, https://github.com/vllm-project/production-stack/issues/747
    prompt = {"completions": "prompt", "responses": "input"}.get(surface, "messages")
    leg = json.loads(prefill_body(read_ask(surface, raw({"model": "m", prompt: "p", **limit})), None))
    ruling = FORMS[surface].limits[0]
    assert leg[ruling] == 1
    assert {leg[name] for name in FORMS[surface].limits if name in leg} == {1}
    assert "min_tokens" not in leg


@pytest.mark.parametrize(
    ("surface", "kind"), [("chat", "image_url"), ("chat", "prompt_embeds"), ("messages", "image")]
)
def test_other_parts_than_text_are_searched_for_unless_no_engine_takes_them(
    surface: Surface, kind: str
) -> None:
    body = raw({"model": "m", "messages": [{"role": "user", "content": [{"type": kind}]}]})
    assert read_ask(surface, body).alone is Reason.MEDIA
    assert read_ask(surface, body, text_only=True).alone is None
    stored = {"model": "m", "input": [{"role": "user", "content": [{"type": "input_image"}]}]}
    assert read_ask("responses", raw(stored), text_only=True).alone is Reason.MEDIA
