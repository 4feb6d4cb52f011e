"""What the stack can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal


class Preset(StrEnum):
    """The hardware the stack runs on."""

    CPU = "cpu"
    GPU = "gpu"
    EFA = "efa"


class Role(StrEnum):
    """What a process does."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


ALWAYS_REUSE: Mapping[str, str] = {"ANTIPHON_PATHS": "reuse", "ANTIPHON_CALIBRATE": "false"}
"""Environment of a router that is to show or measure reuse itself: it pulls all that decode holds, even where
another path is expected to be faster."""

FailurePolicy = Literal["fail", "recompute"]


@dataclass(frozen=True, slots=True)
class Override:
    """Differences of some engines from their preset. ``flags`` come last, so they win over the preset's."""

    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    kv_extra: Mapping[str, Any] = field(default_factory=dict)
    failure_policy: FailurePolicy | None = None
    prefix_cache: bool | None = None


@dataclass(frozen=True, slots=True)
class StackSettings:
    """One stack on this machine.

    ``overrides``: by role (``"prefill"``) or by engine (``"decode-1"``), the latter applied last.
    ``stock``: vLLM's own connector instead of Antiphon's. ``kv_space``: GiB of KV cache
    per engine, ``cpu`` only. ``host``: what the router listens on. ``address``: where engines on other
    nodes find this one's, a number once ``node.placed``; None is loopback. ``interface``: the one that has
    it. ``engine_host``: what engines listen on; None is their address. ``gpus``: those of the engines in
    turn; None counts them from 0, none at all leaves them to the surrounding environment.
    ``key``: the engines' API key. ``startup_timeout``: seconds until all are ready. ``stop_grace``: seconds
    between asking to stop and killing. ``log_dir`` None: a new folder under the cache.
    """

    preset: Preset = Preset.CPU
    model: str = "smollm2"
    prefill: int = 1
    decode: int = 1
    router: bool = True
    host: str = "127.0.0.1"
    port: int = 8000
    address: str | None = None
    interface: str | None = None
    engine_host: str | None = None
    gpus: tuple[str, ...] | None = None
    prefill_cache: bool = True
    stock: bool = False
    failure_policy: FailurePolicy = "recompute"
    threshold: int = 64
    decode_ttl: int = 60
    max_model_len: int | None = None
    block_size: int | None = None
    tensor_parallel: int = 1
    data_parallel: int = 1
    kv_space: int = 1
    key: str | None = None
    overrides: Mapping[str, Override] = field(default_factory=dict)
    router_env: Mapping[str, str] = field(default_factory=dict)
    log_dir: Path | None = None
    startup_timeout: float = 900.0
    stop_grace: float = 15.0
