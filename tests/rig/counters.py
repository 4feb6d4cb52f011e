"""What an engine says it did: its Prometheus counters and its leases."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

WAIT_S = 30.0
T = TypeVar("T")


@dataclass(frozen=True)
class Counters:
    """Since the engine's start. ``computed``, ``local``, ``pulled``: prompt tokens by where their KV came
    from. ``received``: bytes this engine read from others."""

    computed: int
    local: int
    pulled: int
    received: int

    def since(self, before: Counters) -> Counters:
        return Counters(
            self.computed - before.computed,
            self.local - before.local,
            self.pulled - before.pulled,
            self.received - before.received,
        )


def read(url: str) -> Counters:
    """The counters of the engine at ``url``."""
    values: dict[str, float] = {}
    text = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            source = sample.labels.get("source")
            name = f"{sample.name}:{source}" if source else sample.name
            values[name] = values.get(name, 0) + sample.value
    by_source = "vllm:prompt_tokens_by_source_total"
    return Counters(
        int(values.get(f"{by_source}:local_compute", 0)),
        int(values.get(f"{by_source}:local_cache_hit", 0)),
        int(values.get(f"{by_source}:external_kv_transfer", 0)),
        int(values.get("vllm:nixl_bytes_transferred_sum", 0)),
    )


def pinned(url: str) -> int:
    """Finished requests whose blocks the engine keeps for a reader."""
    reply = httpx.post(f"{url}/antiphon/leases", json={}, timeout=60, trust_env=False)
    return int(reply.raise_for_status().json()["pinned"])


def eventually(read: Callable[[], T], accept: Callable[[T], bool], within: float = WAIT_S) -> T:
    """The first accepted reading, or the last one when time is up: for what engines report a little late."""
    deadline = time.monotonic() + within
    while not accept(value := read()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value
