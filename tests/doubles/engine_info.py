"""What an engine says of itself, for tests that need no engine."""

from __future__ import annotations

from typing import Any

from antiphon_server.protocol import Info, LeaseLimits


def info(**given: Any) -> Info:
    """A sound engine's, but for what is given."""
    facts: dict[str, Any] = {
        "protocol": 1,
        "engine_id": "e",
        "epoch": "one",
        "role": "both",
        "model": "m",
        "vllm": "0.32.0",
        "nixl": "1.5.1",
        "block_size": 16,
        "kv_groups": ["full_attention"],
        "tensor_parallel": 1,
        "data_parallel": 1,
        "threshold": 64,
        "capacity": 0,
        "leases": LeaseLimits(60, 30, 600),
        "reuse": True,
    }
    return Info(**(facts | given))
