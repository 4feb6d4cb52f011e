"""Flags, environment and KV transfer of each preset: data, no decisions.

Read on real engines for ``cpu``; ``gpu`` and ``efa`` follow the documentation of vLLM, NIXL and EFA and were
not run on such hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon_server.stack.settings import Preset


@dataclass(frozen=True, slots=True)
class PresetData:
    """``dtype`` None: the model's own. ``buffer``: where NIXL reads and writes KV.

    ``alone`` and ``apart``: the environment of engines that meet on loopback, and on other addresses.
    """

    block_size: int
    dtype: str | None
    buffer: str
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    alone: Mapping[str, str] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    kv_extra: Mapping[str, Any] = field(default_factory=dict)
    gpus: bool = False
    between_nodes: bool = False


UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
COMMON_FLAGS = (
    "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice",
)
COMMON_ENV = {
    # vLLM closes idle connections after 5 s; a pooled client then meets a dead one after any long prefill.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}

PRESETS: Mapping[Preset, PresetData] = {
    Preset.CPU: PresetData(
        # vLLM's own default of 128 is too coarse to reuse short turns.
        block_size=32,
        dtype="float32",
        buffer="cpu",
        # In one process with the scheduler. vLLM's default here is a worker process that spins while it
        # waits, on as many cores as there are engines: a first transfer took 86 s instead of 12 on two.
        flags=("--enforce-eager", "--max-num-seqs", "16", "--distributed-executor-backend", UNIPROC),
        env={
            # --enforce-eager leaves the sampler's own torch.compile: the first request with log-probabilities
            # would wait for a C++ compiler, half a minute on two idle cores.
            "TORCHDYNAMO_DISABLE": "1",
        },
        alone={"UCX_TLS": "tcp,sm,self", "UCX_NET_DEVICES": "lo"},
        # No shared memory: containers of one host have none in common.
        apart={"UCX_TLS": "tcp,self"},
        # Pulls wait behind whole prefills here, longer than vLLM's 30 s.
        kv_extra={"kv_lease_duration": 120},
    ),
    Preset.GPU: PresetData(
        block_size=64,
        dtype=None,
        buffer="cuda",
        env={"VLLM_KV_CACHE_LAYOUT": "HND"},
        gpus=True,
    ),
    Preset.EFA: PresetData(
        # LIBFABRIC posts descriptors one by one: large blocks and heads before tokens make fewer of them.
        block_size=128,
        dtype=None,
        buffer="cuda",
        env={
            "VLLM_KV_CACHE_LAYOUT": "HND",
            "FI_PROVIDER": "efa",
            "FI_EFA_USE_DEVICE_RDMA": "1",
            "FI_EFA_ENABLE_SHM_TRANSFER": "0",
        },
        kv_extra={"backends": ["LIBFABRIC"]},
        gpus=True,
        between_nodes=True,
    ),
}
