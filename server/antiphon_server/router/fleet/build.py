"""What has to be equal on both sides of a transfer of KV."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from antiphon_server.protocol import Info


class Build(NamedTuple):
    """What an engine says of itself, as far as a transfer depends on it."""

    protocol: int
    model: str
    vllm: str
    nixl: str
    dtype: str | None
    block_size: int
    tensor_parallel: int
    reuse: bool


def build_of(info: Info) -> Build:
    """An engine's build. Equal ones are one object, so that most comparisons are no more than ``is``."""
    return _shared(
        Build(
            info.protocol,
            info.model,
            info.vllm,
            info.nixl,
            info.dtype,
            info.block_size,
            info.tensor_parallel,
            info.reuse,
        )
    )


@lru_cache(maxsize=1024)
def _shared(build: Build) -> Build:
    return build


_WORDS = {
    "protocol": "Antiphon protocol",
    "model": "model",
    "vllm": "vLLM",
    "nixl": "NIXL",
    "dtype": "dtype",
    "block_size": "block size",
    "tensor_parallel": "tensor parallelism",
}
_UNKNOWN = (None, "", "unknown")


def incompatible(prefill: Info | None, decode: Info | None) -> str | None:
    """Why the two cannot hand over KV, None if nothing is known against it. A stock engine (None) says
    nothing.

    Model, vLLM, NIXL and dtype enter the handshake of vLLM's connector. Block sizes: decode compares the
    digests in prefill's handle with its own, block by block. Tensor parallelism may differ one way, but not
    when KV also goes back (https://github.com/vllm-project/vllm/issues/50765).
    """
    if prefill is None or decode is None:
        return None
    return difference(build_of(prefill), build_of(decode))


def difference(prefill: Build | None, decode: Build | None) -> str | None:
    """The same of two builds."""
    if prefill is decode or prefill is None or decode is None:
        return None
    return _difference(prefill, decode)


@lru_cache(maxsize=1024)
def _difference(prefill: Build, decode: Build) -> str | None:
    both = prefill.reuse and decode.reuse
    for name, word in _WORDS.items():
        left, right = getattr(prefill, name), getattr(decode, name)
        if left == right or left in _UNKNOWN or right in _UNKNOWN or (name == "tensor_parallel" and not both):
            continue
        return f"{word} differs: prefill has {left}, decode has {right}"
    return None
