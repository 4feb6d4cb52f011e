from __future__ import annotations

import pytest

from antiphon_server.engine.support import UnsupportedEngineError, decline_reason, require

GOOD = {
    "kv_groups": ["FullAttentionSpec"],
    "hash_algorithm": "sha256",
    "hash_seed_pinned": False,
    "context_parallel": 1,
    "block_size": 32,
    "hash_unit": 32,
}


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0+cpu", "1.0.1"])
def test_supported_versions_start(version: str) -> None:
    require(version, reuse_flag=True)


@pytest.mark.parametrize("version", ["0.30.9", "0.21.0", "dev"])
def test_unsupported_version_refuses_to_start_and_names_the_remedy(version: str) -> None:
    with pytest.raises(UnsupportedEngineError, match="install"):
        require(version, reuse_flag=True)


def test_missing_reuse_flag_refuses_to_start() -> None:
    with pytest.raises(UnsupportedEngineError, match="bidirectional_kv_xfer: set it to true"):
        require("0.32.0", reuse_flag=False)


def test_one_full_attention_group_reuses() -> None:
    assert decline_reason(**GOOD) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"kv_groups": ["FullAttentionSpec", "SlidingWindowSpec"]}, "SlidingWindowSpec"),
        ({"kv_groups": ["MambaSpec"]}, "MambaSpec"),
        ({"kv_groups": []}, "none"),
        ({"hash_algorithm": "xxhash"}, "PYTHONHASHSEED"),
        ({"context_parallel": 2}, "context parallel size 2"),
        ({"hash_unit": 5}, "hash unit 5"),
    ],
)
def test_reuse_is_declined_with_the_reason(change: dict[str, object], names: str) -> None:
    reason = decline_reason(**{**GOOD, **change})  # type: ignore[arg-type]
    assert reason is not None
    assert names in reason


def test_unseeded_hash_is_fine_once_the_seed_is_pinned() -> None:
    assert decline_reason(**{**GOOD, "hash_algorithm": "xxhash", "hash_seed_pinned": True}) is None  # type: ignore[arg-type]
