"""The plug-in on real engines, leg by leg: handles on streams, declined pulls, leases, /antiphon/info."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from openai import OpenAI

from antiphon_server.protocol import HANDLE_OBJECT, LEG_HEADER, Handle, Info, seal_of, unpack_chain
from rig import counters
from rig.answers import chat
from rig.backdated import EXPIRED
from rig.fleet import BLOCK, CACHED, UNCACHED, Pair
from rig.legs import DIRECT, PROTOCOL, chat_body, decode_leg, prefill_leg, release
from rig.scenes import FIRST, NEXT

pytestmark = pytest.mark.engine


@pytest.fixture
def pair(pairs: Mapping[str, Pair]) -> Pair:
    """Tests here name their prefill engine; the clients are those of the cached one."""
    return pairs[CACHED]


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60, trust_env=False) as client:
        yield client


def first_turn(http: httpx.Client, pair: Pair, salt: str) -> tuple[str, Handle]:
    """The answer of a cold turn and decode's handle."""
    prefilled = prefill_leg(http, pair.prefill, FIRST, salt).raise_for_status().json()
    reply = decode_leg(http, pair.decode, FIRST, salt, prefilled, 80).raise_for_status().json()
    return reply["choices"][0]["message"]["content"], reply["kv_transfer_params"]


def ends(http: httpx.Client, url: str, handle: Handle) -> bool:
    """The lease is known, and gone soon after its release."""
    lease = handle["remote_request_id"]
    known = isinstance(release(http, url, handle)["leases"][lease], float)
    gone = counters.eventually(
        lambda: release(http, url, handle)["leases"][lease], lambda end: end == "unknown"
    )
    return known and gone == "unknown"


SURFACES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": FIRST},
    "/v1/completions": {"prompt": "Once there was a list. " * 8},
    "/v1/messages": {"messages": [FIRST[1]]},
}


@pytest.mark.parametrize("surface", SURFACES)
def test_stream_returns_the_handle_right_before_its_end(
    surface: str, http: httpx.Client, pairs: Mapping[str, Pair], salt: str
) -> None:
    url = pairs[CACHED].decode
    body = {"model": "tiny", "max_tokens": 8, "temperature": 0, "stream": True, **SURFACES[surface]}
    body["kv_transfer_params"] = DIRECT
    text = http.post(url + surface, json=body, headers=PROTOCOL).raise_for_status().text
    lines = [line for line in text.splitlines() if line.startswith(("data:", "event:"))]
    ends = [at for at, line in enumerate(lines) if line in ("data: [DONE]", "event: message_stop")]
    handle = json.loads(lines[ends[0] - 1].removeprefix("data: "))
    assert handle["object"] == HANDLE_OBJECT
    seal = seal_of(handle["kv_transfer_params"])
    assert seal is not None
    assert len(unpack_chain(seal.chain)) == seal.tokens // BLOCK > 0
    assert release(http, url, handle["kv_transfer_params"])["leases"]


def test_expired_pull_is_computed_by_prefill_itself_under_policy_recompute(
    http: httpx.Client, pairs: Mapping[str, Pair], decode: OpenAI, salt: str
) -> None:
    """Stock vLLM 0.32 waits for ever here."""
    pair = pairs[CACHED]
    text, handle = first_turn(http, pair, salt)
    messages = [*FIRST, {"role": "assistant", "content": text}, NEXT]
    expired = {**handle, "remote_blocks_expiry_time": EXPIRED}
    prefilled = prefill_leg(http, pair.prefill, messages, salt, expired).raise_for_status().json()
    seal = seal_of(prefilled["kv_transfer_params"])
    assert seal is not None
    assert (seal.match, seal.pulled) == ("failed", 0)
    reply = decode_leg(http, pair.decode, messages, salt, prefilled).raise_for_status().json()
    reference = chat(decode, messages, salt=salt + "-fresh")
    assert tuple(reply["choices"][0]["token_ids"]) == reference.ids
    release(http, pair.decode, handle, reply["kv_transfer_params"])


def test_expired_pull_is_refused_under_policy_fail_and_cold_works_at_once(
    http: httpx.Client, pairs: Mapping[str, Pair], decode: OpenAI, salt: str
) -> None:
    pair = pairs[UNCACHED]
    text, handle = first_turn(http, pair, salt)
    messages = [*FIRST, {"role": "assistant", "content": text}, NEXT]
    expired = {**handle, "remote_blocks_expiry_time": EXPIRED}
    assert prefill_leg(http, pair.prefill, messages, salt, expired).status_code == 500
    prefilled = prefill_leg(http, pair.prefill, messages, salt).raise_for_status().json()
    reply = decode_leg(http, pair.decode, messages, salt, prefilled).raise_for_status().json()
    reference = chat(decode, messages, salt=salt + "-fresh")
    assert tuple(reply["choices"][0]["token_ids"]) == reference.ids
    release(http, pair.decode, handle, reply["kv_transfer_params"])


def test_decode_does_not_read_prefill_blocks_whose_lease_is_over(
    http: httpx.Client, pairs: Mapping[str, Pair], decode: OpenAI, salt: str
) -> None:
    pair = pairs[CACHED]
    prefilled = prefill_leg(http, pair.prefill, FIRST, salt).raise_for_status().json()
    prefilled["kv_transfer_params"]["remote_blocks_expiry_time"] = EXPIRED
    before = counters.read(pair.decode)
    reply = decode_leg(http, pair.decode, FIRST, salt, prefilled).raise_for_status().json()
    assert tuple(reply["choices"][0]["token_ids"]) == chat(decode, FIRST, salt=salt + "-fresh").ids
    assert (counters.read(pair.decode) - before).received == 0
    release(http, pair.prefill, prefilled["kv_transfer_params"])
    release(http, pair.decode, reply["kv_transfer_params"])


def test_decode_refuses_prefill_kv_of_another_prompt(
    http: httpx.Client, pairs: Mapping[str, Pair], decode: OpenAI, salt: str
) -> None:
    """Never sent by the router; a mixed-up proxy would, and stock vLLM would answer on it."""
    pair = pairs[CACHED]
    others = [FIRST[0], {**FIRST[1], "content": FIRST[1]["content"].replace("dear", "cheap")}]
    mine = prefill_leg(http, pair.prefill, FIRST, salt).raise_for_status().json()
    foreign = prefill_leg(http, pair.prefill, others, salt).raise_for_status().json()
    mixed = {**foreign, "prompt_token_ids": mine["prompt_token_ids"]}
    reply = decode_leg(http, pair.decode, FIRST, salt, mixed).raise_for_status().json()
    assert tuple(reply["choices"][0]["token_ids"]) == chat(decode, FIRST, salt=salt + "-fresh").ids
    release(http, pair.prefill, mine["kv_transfer_params"], foreign["kv_transfer_params"])
    release(http, pair.decode, reply["kv_transfer_params"])


@pytest.mark.parametrize(
    "change",
    [
        {"remote_block_ids": "all"},
        {"remote_num_tokens": "many"},
        {"remote_port": None},
        {"remote_block_ids": [[1], [2]]},
        {"antiphon": {"chain": "?"}},
        {"antiphon": None},
    ],
    ids=str,
)
def test_malformed_handle_is_computed_and_leaves_the_engine_alive(
    change: dict[str, Any], http: httpx.Client, pairs: Mapping[str, Pair], salt: str
) -> None:
    pair = pairs[CACHED]
    text, handle = first_turn(http, pair, salt)
    messages = [*FIRST, {"role": "assistant", "content": text}, NEXT]
    reply = prefill_leg(http, pair.prefill, messages, salt, {**handle, **change}).raise_for_status().json()
    seal = seal_of(reply["kv_transfer_params"])
    assert seal is not None
    assert seal.pulled == 0
    assert http.get(f"{pair.prefill}/health").status_code == 200
    release(http, pair.decode, handle)
    release(http, pair.prefill, reply["kv_transfer_params"])


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_extra_arguments_that_pose_as_a_handle_leave_the_engine_alive(
    role: str, http: httpx.Client, pairs: Mapping[str, Pair], salt: str
) -> None:
    """Stock vLLM 0.32 merges them with ``kv_transfer_params``; its engine ends on a string there."""
    url = getattr(pairs[CACHED], role)
    body = {**chat_body(FIRST, salt, 4), "vllm_xargs": {"kv_transfer_params": "junk"}}
    http.post(f"{url}/v1/chat/completions", json=body)
    del body["vllm_xargs"]
    assert http.post(f"{url}/v1/chat/completions", json=body).status_code == 200


def test_leases_are_renewed_and_released(http: httpx.Client, pairs: Mapping[str, Pair], salt: str) -> None:
    pair = pairs[CACHED]
    _, handle = first_turn(http, pair, salt)
    lease = handle["remote_request_id"]
    renew = {"renew": [{"id": lease, "ttl": 300}, {"id": "nobody's", "ttl": 300}]}
    reply = http.post(f"{pair.decode}/antiphon/leases", json=renew).raise_for_status().json()
    assert 200 < reply["leases"][lease] - handle["remote_blocks_expiry_time"] < 300
    assert reply["leases"]["nobody's"] == "unknown"
    assert counters.pinned(pair.decode) >= 1
    assert ends(http, pair.decode, handle)


def test_turn_served_by_decode_alone_has_a_lease_that_ends(
    http: httpx.Client, pairs: Mapping[str, Pair], salt: str
) -> None:
    """Stock vLLM 0.32 never frees the blocks of a request that came without any prefill."""
    url = pairs[CACHED].decode
    reply = http.post(f"{url}/v1/chat/completions", json=chat_body(FIRST, salt, 8, DIRECT)).json()
    assert ends(http, url, reply["kv_transfer_params"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("surface", SURFACES)
def test_reply_names_its_leg_and_by_that_name_its_lease_ends(
    surface: str, stream: bool, http: httpx.Client, pairs: Mapping[str, Pair], salt: str
) -> None:
    url, leg = pairs[CACHED].decode, f"{salt}-d1"
    body = {"model": "tiny", "max_tokens": 8, "temperature": 0, "stream": stream, **SURFACES[surface]}
    body["kv_transfer_params"] = DIRECT
    reply = http.post(url + surface, json=body, headers={**PROTOCOL, "X-Request-Id": leg}).raise_for_status()
    assert reply.headers[LEG_HEADER] == leg
    if stream:
        events = [line.removeprefix("data: ") for line in reply.text.splitlines() if HANDLE_OBJECT in line]
        handle = json.loads(events[-1])["kv_transfer_params"]
    else:
        handle = reply.json()["kv_transfer_params"]
    renew = {"renew": [{"id": handle["remote_request_id"], "ttl": 60}]}

    def lease(**more: list[str]) -> float | str:
        asked = http.post(f"{url}/antiphon/leases", json={**renew, **more}).raise_for_status().json()
        deadline: float | str = asked["leases"][handle["remote_request_id"]]
        return deadline

    assert isinstance(lease(legs=["another"]), float)
    lease(legs=[leg])
    assert lease() == "unknown"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engine_says_what_it_is(role: str, http: httpx.Client, pairs: Mapping[str, Pair]) -> None:
    reply = http.get(f"{getattr(pairs[CACHED], role)}/antiphon/info").raise_for_status()
    info = Info(**reply.json())
    assert (info.role, info.model, info.block_size) == (role, "tiny", BLOCK)
    assert (info.kv_groups, info.reuse, info.reuse_reason) == (["FullAttentionSpec"], True, None)
    assert info.names_legs


def test_lease_calls_with_a_bad_body_are_refused(http: httpx.Client, pairs: Mapping[str, Pair]) -> None:
    url = f"{pairs[CACHED].decode}/antiphon/leases"
    reply = http.post(url, json={"release": "all"})
    assert reply.status_code == 400
    assert "release" in reply.json()["error"]
    assert http.get(url).status_code == 405
