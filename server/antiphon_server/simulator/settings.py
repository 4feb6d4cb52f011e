"""Settings of one simulated engine."""

from __future__ import annotations

from typing import Literal

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine is and how fast it works. Rates are per second; 0 means without delay.

    ``capacity``: KV blocks. ``threshold``: fewer remote tokens than this are not pulled (0: always pull).
    ``decode_lease``, ``prefill_lease``, ``longest_lease``: seconds. ``decode_rate``: steps, each one token of
    every running sequence; ``prefill_rate``: prompt tokens beside them, ``chunk`` of them in a step at most.
    ``reuse``: vLLM's ``bidirectional_kv_xfer``. ``data_parallel``: ranks it says it has; they share all here.
    ``antiphon=False`` is a stock engine: no seal, no ``/antiphon/*``, no handle on streams. ``check=False``
    keeps all of that but believes every handle, which shows that an exactness test can fail.
    ``answer_tokens`` and ``reasoning_tokens``: letters an answer has when nothing ends it earlier.
    ``tool_turns``: tools that the model calls, where it may, before it answers what the user said.
    ``store``: responses are kept for ``previous_response_id`` (vLLM: VLLM_ENABLE_RESPONSES_API_STORE).
    ``dev``: the prefix cache can be emptied from outside (vLLM: VLLM_SERVER_DEV_MODE).
    ``drift``: text with two letters in a row does not tokenise back to the ids that were sampled.
    """

    role: Literal["prefill", "decode"] = "decode"
    model: str = "simulated"
    block_size: int = 16
    capacity: int = 4096
    max_model_len: int = 131072
    antiphon: bool = True
    check: bool = True
    reuse: bool = True
    data_parallel: int = 1
    prefix_caching: bool = True
    hash_seed: str = "simulated"
    threshold: int = 64
    kv_load_failure_policy: Literal["fail", "recompute"] = "fail"
    decode_lease: float = 60.0
    prefill_lease: float = 30.0
    longest_lease: float = 600.0
    prefill_rate: float = 0.0
    chunk: int = 2048
    decode_rate: float = 0.0
    transfer_rate: float = 0.0
    bytes_per_token: int = 1024
    answer_tokens: int = 24
    reasoning_tokens: int = 0
    tool_turns: int = 0
    drift: bool = False
    store: bool = False
    dev: bool = False
    api_key: str | None = None
    host: str = "127.0.0.1"
    side_channel_port: int = 5600
