"""What an instant engine answers, made once for each length of prompt: vLLM's shapes and sizes, no model.

A reply is two byte strings with room for the request's id between them, so that handles differ and nothing
has to be encoded while others wait.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from antiphon_server.protocol import (
    DIGEST_BYTES,
    HANDLE_OBJECT,
    PROMPT_HEADER,
    Info,
    LeaseLimits,
    Match,
    Prompt,
    Seal,
    pack_chain,
    sealed,
)

MODEL = "instant"
BLOCK_SIZE = 128
"""As on EFA, where small blocks cost transfers. Smaller ones make longer handles."""
ANSWER = 16
"""Tokens of an answer that the request does not limit."""
_ID = "0123456789abcdef"
_HOST = "10.120.130.140"
_CREATED = 1_790_000_000
_VOCABULARY = 128_000

Parts = tuple[bytes, bytes]
"""A reply before and after the id."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``tokens``: of the prompt. ``ids``: it asks for them. ``ours``: it speaks our protocol. ``kept``: it
    comes with ``kv_transfer_params``, so its own KV is kept and told. ``handed``: those name another engine's
    KV. ``chunks``: of the answer."""

    tokens: int
    ids: bool = False
    ours: bool = False
    kept: bool = False
    handed: bool = False
    chunks: int = ANSWER


def info(role: str) -> Info:
    """As ``GET /antiphon/info`` gives it."""
    return Info(
        protocol=1,
        engine_id=f"instant-{role}",
        epoch="0123456789abcdef",
        role="prefill" if role == "prefill" else "decode",
        model=MODEL,
        vllm="0.32.0",
        nixl="1.5.1",
        block_size=BLOCK_SIZE,
        kv_groups=["full_attention"],
        tensor_parallel=1,
        data_parallel=1,
        threshold=64,
        capacity=1 << 40,
        leases=LeaseLimits(decode=480.0, prefill=30.0, longest=480.0),
        reuse=True,
        prefix_caching=True,
        text_only=True,
    )


@lru_cache(maxsize=64)
def prefill(wanted: Wanted) -> Parts:
    """A prefill leg's whole reply."""
    return _whole(_completion(wanted, 1, _handle("prefill", wanted)), wanted, cached=0)


@lru_cache(maxsize=64)
def decode(wanted: Wanted) -> Parts:
    """A decode leg's whole reply."""
    handle = _handle("decode", wanted) if wanted.kept else None
    return _whole(_completion(wanted, wanted.chunks, handle), wanted, cached=wanted.tokens)


@lru_cache(maxsize=64)
def opening(wanted: Wanted) -> bytes:
    """Head and first event of a decode leg's stream."""
    prompt = f"{PROMPT_HEADER}: {Prompt(wanted.tokens, wanted.tokens).header()}\r\n" if wanted.ours else ""
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n{prompt}"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    return head.encode() + framed(_event({"role": "assistant", "content": ""}))


def chunk(text: str) -> bytes:
    """One token of a stream, framed. ``text``: plain ASCII."""
    before, after = _chunk_parts()
    event = before + text.encode() + after
    return b"%x\r\n%b\r\n" % (len(event), event)


@lru_cache(maxsize=64)
def ending(wanted: Wanted) -> Parts:
    """The last events of a stream: the reason, our handle where it is asked for, the end."""
    last = _event({"content": ""}, "length")
    if wanted.ours and wanted.kept:
        handle = {"object": HANDLE_OBJECT, "kv_transfer_params": _handle("decode", wanted)}
        last += b"data: " + msgspec.json.encode(handle) + b"\n\n"
    before, after = _split(framed(last + b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return before, after


def framed(data: bytes) -> bytes:
    """As a chunk of a body without length."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def answer(body: bytes, content_type: str = "application/json", status: str = "200 OK") -> bytes:
    """A whole reply."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _whole(reply: dict[str, Any], wanted: Wanted, cached: int) -> Parts:
    body = msgspec.json.encode(reply)
    prompt = f"{PROMPT_HEADER}: {Prompt(wanted.tokens, cached).header()}\r\n" if wanted.ours else ""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{prompt}Content-Length: {len(body)}\r\n\r\n"
    return _split(head.encode() + body)


def _split(data: bytes) -> Parts:
    """The id stands in it once, or not at all."""
    before, _, after = data.partition(_ID.encode())
    return before, after


def id_of(number: int) -> bytes:
    """What goes between a reply's parts."""
    return b"%016x" % number


def _completion(wanted: Wanted, tokens: int, handle: dict[str, Any] | None) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": " ".join(["word"] * tokens)},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [17] * tokens if wanted.ids else None,
    }
    return {
        "id": "chatcmpl-instant",
        "object": "chat.completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [choice],
        "usage": {
            "prompt_tokens": wanted.tokens,
            "completion_tokens": tokens,
            "total_tokens": wanted.tokens + tokens,
        },
        "prompt_token_ids": _ids(wanted.tokens) if wanted.ids else None,
        "kv_transfer_params": handle,
    }


def _ids(count: int) -> list[int]:
    """Of one to six digits, as a large vocabulary has them."""
    return [number * 7919 % _VOCABULARY for number in range(count)]


def _handle(role: str, wanted: Wanted) -> dict[str, Any]:
    tokens = wanted.tokens + (wanted.chunks if role == "decode" else 0)
    blocks = -(-tokens // BLOCK_SIZE)
    params = {
        "do_remote_prefill": role == "prefill",
        "do_remote_decode": role == "decode",
        "remote_block_ids": [[number * 31 % 100_000 for number in range(blocks)]],
        "remote_engine_id": "0d8f2a5e-1111-4222-8333-123456789abc",
        "remote_request_id": f"chatcmpl-{_ID}",
        "remote_host": _HOST,
        "remote_port": 5600,
        "tp_size": 1,
        "remote_blocks_expiry_time": 123456.789012,
    }
    if not wanted.ours:
        return params
    full = tokens // BLOCK_SIZE
    chain = pack_chain(number.to_bytes(DIGEST_BYTES, "big") for number in itertools.islice(_digests(), full))
    told: dict[str, Any] = {}
    if role == "prefill":
        held = full * BLOCK_SIZE if wanted.handed else 0
        match = Match.FULL if wanted.handed else Match.NONE
        told = {"tail": "00" * DIGEST_BYTES, "matched": held, "pulled": held, "match": match}
    return sealed(params, Seal("sha256_cbor", "0123456789abcde0", BLOCK_SIZE, tokens, chain, **told))


def _digests() -> itertools.accumulate[int]:
    mask = (1 << 64) - 1
    return itertools.accumulate(itertools.repeat(0x9E3779B97F4A7C15), lambda a, b: (a * 31 + b) & mask)


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    event = {
        "id": "chatcmpl-instant",
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


@lru_cache(maxsize=1)
def _chunk_parts() -> Parts:
    return _split(_event({"content": _ID}))
