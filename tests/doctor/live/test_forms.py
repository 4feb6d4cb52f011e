"""Answers of any form are told, and never end the doctor with a trace."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon_server.doctor.fleet import checks
from antiphon_server.doctor.fleet.answer import MalformedError, read_chat, read_completion
from antiphon_server.doctor.fleet.client import Patience
from antiphon_server.doctor.fleet.examine import examine
from antiphon_server.doctor.fleet.pair import LegError, Pair
from antiphon_server.doctor.fleet.target import FleetTarget
from antiphon_server.protocol import INFO_PATH, LEASES_PATH
from doctor.live.hostile import Handler, Hostile, engine, hostile, say, tell
from doubles.engine_info import info

SAID = {
    "tokens": ["token_id:1", "token_id:2"],
    "token_logprobs": [-0.1, -0.2],
    "top_logprobs": [{"token_id:1": -0.1}, {"token_id:2": -0.2}],
}
COMPLETION: dict[str, Any] = {
    "object": "antiphon.handle",
    "choices": [{"text": "ab", "token_ids": [1, 2], "prompt_token_ids": [1], "logprobs": SAID}],
    "kv_transfer_params": {
        "remote_request_id": "lease",
        "remote_host": "127.0.0.1",
        "antiphon": {"algorithm": "a", "seed": "s", "block_size": 16, "tokens": 1, "chain": "", "matched": 1},
    },
}
PLACE: dict[str, Any] = {"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "a", "logprob": -0.1}]}
CHAT: dict[str, Any] = {
    "choices": [{"message": {"content": "a"}, "delta": {"content": "a"}, "logprobs": {"content": [PLACE]}}]
}
GOOD: dict[str, Any] = {
    "/v1/completions": COMPLETION,
    "/v1/chat/completions": CHAT,
    "/tokenize": {"tokens": list(range(5000))},
    "/ready": {"status": "ready", "store": "ok"},
    "/v1/models": {"data": [{"id": "m", "max_model_len": 4096}]},
    "/admin/config": {"settings": {"keep": 60.0, "keep_share": 0.5, "paths": ["cold", "reuse"]}},
    LEASES_PATH: {"leases": {"lease": 1.0}, "pinned": 0},
    INFO_PATH: json.loads(msgspec.json.encode(info(role="both"))),
}
SERIES = (
    "antiphon_handles_total",
    "antiphon_worker_breaker",
    "antiphon_worker_healthy",
    "vllm:nixl_bytes_transferred_sum",
    "vllm:nixl_num_failed_transfers_total",
    "vllm:num_requests_running",
)
LABELS = (
    "",
    '{role="decode",worker="no url"}',
    '{role="x",worker="http://[::1"}',
    '{role="prefill",worker="http://127.0.0.1:99999"}',
    '{role="prefill",worker="http://127.0.0.1:1/\x1b"}',
    '{host="loopback"}',
    '{host="',
    "{x}",
)
VALUES = ("1", "NaN", "+Inf", "-Inf", "1e308", "9" * 400, "", "x")

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -1, float("nan"), float("inf"), 1e308, "\ud800", "\x1b[31m", "", 0, 2**63])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
PAGES = st.lists(
    st.tuples(st.sampled_from(SERIES), st.sampled_from(LABELS), st.sampled_from(VALUES))
    .map(lambda parts: f"{parts[0]}{parts[1]} {parts[2]}")
    .filter(str.strip)
    | st.text(max_size=20),
    max_size=3,
).map("\n".join)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all of a value's parts; of a long list, to its first."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    if isinstance(value, list):
        inner = list(enumerate(value))[:1]
    return [at, *(place for key, part in inner for place in places(part, (*at, key)))]


def spoilt(value: Any, at: tuple[Any, ...], odd: Any) -> Any:
    if not at:
        return odd
    value = copy.deepcopy(value)
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = odd
    return value


PLACES = [(path, at) for path, value in GOOD.items() for at in places(value)]


def stream_or_tell(value: Any) -> Any:
    return stream_or_say(json.dumps(value).encode())


def stream_or_say(said: bytes) -> Any:
    """As a stream where that is asked for."""

    def act(handler: Handler) -> None:
        asked = handler.hostile.seen[-1][1]
        streamed = b"data: {}\n\ndata: %b\n\ndata: [DONE]\n\n" % said
        say(streamed if b'"stream": true' in asked or b'"stream":true' in asked else said)(handler)

    return act


def good() -> dict[str, Any]:
    acts: dict[str, Any] = {path: stream_or_tell(value) for path, value in GOOD.items()}
    return {"*": say(b""), **acts}


@pytest.fixture(scope="module")
def one_for_all() -> Iterator[Hostile]:
    """It is prefill, decode and router."""
    with pytest.MonkeyPatch.context() as patch, hostile(good()) as own:
        patch.setattr("antiphon_server.doctor.fleet.round_trip.PATIENCE_S", -1.0)
        yield own


def looked_at(own: Hostile) -> list[str]:
    """All of the fleet; words of what was found."""
    target = FleetTarget(own.url, (own.url,), (own.url + "/",), "engine", "client", "admin", timeout=60.0)
    return [finding.check for finding in examine(target).findings]


BOUNDED = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def test_what_is_spoilt_here_is_else_examined_to_its_end(one_for_all: Hostile) -> None:
    one_for_all.acts = good()
    assert checks.LEG.word not in looked_at(one_for_all)
    assert "/v1/chat/completions" in [path for path, _ in one_for_all.seen]


@BOUNDED
@given(st.sampled_from(PLACES), ODD)
def test_any_json_in_an_answer_is_borne(
    one_for_all: Hostile, place: tuple[str, tuple[Any, ...]], odd: Any
) -> None:
    path, at = place
    one_for_all.acts = {**good(), path: stream_or_tell(spoilt(GOOD[path], at, odd))}
    looked_at(one_for_all)


@BOUNDED
@given(PAGES)
def test_any_metrics_page_is_borne(one_for_all: Hostile, page: str) -> None:
    one_for_all.acts = {**good(), "/metrics": say(page.encode(errors="replace"))}
    looked_at(one_for_all)


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_object_are_borne(one_for_all: Hostile, path: str, body: bytes) -> None:
    one_for_all.acts = {**good(), path: say(body)}
    assert looked_at(one_for_all) or path == "/v1/models"


NESTED = b"[" * 100_000 + b"]" * 100_000


def later(body: bytes) -> Any:
    """A good answer to what does not hand over."""

    def act(handler: Handler) -> None:
        asked = handler.hostile.seen[-1][1]
        handed = b"do_remote_decode" in asked and b'"stream": true' not in asked
        (say(body) if handed else stream_or_tell(COMPLETION))(handler)

    return act


@pytest.mark.parametrize("key", ["other", "antiphon", "remote_request_id"])
def test_nesting_without_end_is_borne(one_for_all: Hostile, key: str) -> None:
    body = b'{"kv_transfer_params": {"%b": %b}}' % (key.encode(), NESTED)
    one_for_all.acts = {**good(), "/v1/completions": later(body), "/v1/chat/completions": stream_or_say(body)}
    assert checks.LEG.word in looked_at(one_for_all)


@pytest.mark.parametrize(
    "worker", ["", "no url", "http://[::1", "http://127.0.0.1:99999", "http://a/\u2028", "x:/"]
)
def test_engines_that_a_router_names_oddly_are_told(one_for_all: Hostile, worker: str) -> None:
    page = f'antiphon_worker_healthy{{role="decode",worker="{worker}"}} 1\n'
    one_for_all.acts = {**good(), "/metrics": say(page.encode())}
    assert checks.ENGINE.word in looked_at(one_for_all)


@given(st.sampled_from(places(COMPLETION)), st.sampled_from(places(CHAT)), ODD)
def test_answers_are_read_or_malformed(of_completion: Any, of_chat: Any, odd: Any) -> None:
    for read, value in (
        (read_completion, spoilt(COMPLETION, of_completion, odd)),
        (read_chat, spoilt(CHAT, of_chat, odd)),
    ):
        try:
            answer = read(json.dumps(value).encode())
        except MalformedError:
            continue
        assert len(answer.tokens) == len(answer.logprobs) == len(answer.likely)
        assert all(isinstance(number, float) for number in answer.logprobs)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "Expected `object`, got `null`"),
        ([], "Expected `object`, got `array`"),
        ({"tokens": "abc"}, "Expected `array`"),
        ({"tokens": [1.5]}, "Expected `int`"),
        ({"tokens": []}, "makes 0 tokens of 100 characters"),
    ],
)
def test_tokenizer_that_answers_something_else_is_told(said: Any, told: str) -> None:
    with (
        hostile({**engine("decode"), "/tokenize": tell(said)}) as decode,
        Pair(decode.url, decode.url, "m", key=None, stock=True, patience=Patience()) as pair,
        pytest.raises(LegError, match=told),
    ):
        pair.ids("x" * 100)
