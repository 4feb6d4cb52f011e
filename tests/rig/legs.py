"""The two legs of a turn sent by hand, as the router sends them, for tests that look at one leg alone."""

from __future__ import annotations

from typing import Any

import httpx

from antiphon_server.protocol import PROTOCOL_HEADER, Handle
from rig.answers import MODEL, Messages

PROTOCOL = {PROTOCOL_HEADER: "1"}
COLD: Handle = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
DIRECT: Handle = {"do_remote_decode": False, "do_remote_prefill": False}
"""Straight to decode, no prefill."""


def chat_body(messages: Messages, salt: str, tokens: int, handle: Handle | None = None) -> dict[str, Any]:
    body = {
        "model": MODEL,
        "messages": list(messages),
        "max_tokens": tokens,
        "temperature": 0,
        "cache_salt": salt,
        "return_token_ids": True,
    }
    return body if handle is None else {**body, "kv_transfer_params": handle}


def prefill_leg(
    http: httpx.Client, url: str, messages: Messages, salt: str, handle: Handle | None = None
) -> httpx.Response:
    """One token, cold or with decode's handle."""
    sent = COLD if handle is None else {**handle, "do_remote_decode": True, "do_remote_prefill": False}
    return http.post(f"{url}/v1/chat/completions", json=chat_body(messages, salt, 1, sent))


def decode_leg(
    http: httpx.Client, url: str, messages: Messages, salt: str, prefilled: dict[str, Any], tokens: int = 16
) -> httpx.Response:
    """The rest, on prefill's KV. ``prefilled``: the prefill leg's reply."""
    handle = {**prefilled["kv_transfer_params"], "prompt_token_ids": prefilled["prompt_token_ids"]}
    return http.post(f"{url}/v1/chat/completions", json=chat_body(messages, salt, tokens, handle))


def release(http: httpx.Client, url: str, *handles: Handle) -> dict[str, Any]:
    """End the leases of these handles; the engine's answer."""
    body = {"release": [handle["remote_request_id"] for handle in handles]}
    reply: dict[str, Any] = http.post(f"{url}/antiphon/leases", json=body).raise_for_status().json()
    return reply
