"""Where reuse can be right: the version gate, and reasons to decline it."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon_server.versions import MINIMUM_VLLM, numbers, text

HASHES_WITH_FIXED_SEED = ("sha256", "sha256_cbor")


class UnsupportedEngineError(RuntimeError):
    """The engine must not start with this connector; the message says why and what to do."""


def require(version: str, *, reuse_flag: bool) -> None:
    """Refuse an engine whose hand-over can lose or mix up KV.

    Raises:
        UnsupportedEngineError: vLLM before 0.31 (leases not reaped, failed receives lost), or a version that
            cannot be read, or ``bidirectional_kv_xfer`` missing.
    """
    found = numbers(version)
    if len(found) < 2:
        raise UnsupportedEngineError(f"cannot read vLLM's version {version!r}; install a release")
    if found < MINIMUM_VLLM:
        raise UnsupportedEngineError(
            f"vLLM {version} is too old for exact KV reuse: install {text(MINIMUM_VLLM)} or later, "
            "or use kv_connector NixlConnector for plain prefill/decode"
        )
    if not reuse_flag:
        raise UnsupportedEngineError(
            "kv_connector_extra_config has no bidirectional_kv_xfer: set it to true on prefill and decode, "
            "or use kv_connector NixlConnector for plain prefill/decode"
        )


def decline_reason(
    *,
    kv_groups: Sequence[str],
    hash_algorithm: str,
    hash_seed_pinned: bool,
    context_parallel: int,
    block_size: int,
    hash_unit: int,
) -> str | None:
    """Why this engine serves plain P/D only, or None when it can reuse exactly.

    ``kv_groups``: class names of the KV cache specs, one per transferred group.
    """
    if len(kv_groups) != 1 or kv_groups[0] not in ("FullAttentionSpec", "MLAAttentionSpec"):
        return f"KV groups {', '.join(kv_groups) or 'none'}: only one full-attention group can be cut"
    if hash_algorithm not in HASHES_WITH_FIXED_SEED and not hash_seed_pinned:
        return (
            f"prefix_caching_hash_algo {hash_algorithm} has a random seed per process: "
            "use sha256 or set PYTHONHASHSEED to one value on all engines"
        )
    if context_parallel > 1:
        return f"context parallel size {context_parallel}: KV of a block is spread over ranks"
    if hash_unit < 1 or block_size % hash_unit:
        return f"block size {block_size} is no multiple of the hash unit {hash_unit}"
    return None
