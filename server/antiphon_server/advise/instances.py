"""Machines that the adviser knows by name, and what they were measured to do.

Read, not measured by us: network interfaces and GPU memory from the vendor's tables, peak compute from the
GPUs' data sheets. The announcement measured two models on p5en; the simulator's rates, which are fitted to
its figures, are taken for those, and their efficiency for all else.
"""

from __future__ import annotations

from dataclasses import dataclass

LINE_SHARE = 0.065
"""Of the line rate that a pull of KV reaches, with all that prefill does for it: Qwen3-32B on p5en, 26 GB/s
of 400. Descriptors are posted one by one, so block size and layout weigh more than the line."""
DENSE_SHARE, MIXTURE_SHARE = 0.5, 0.1
"""Of peak compute that prefill reaches: 49 % with Qwen3-32B, 11 % with GLM-5, in the announcement."""
FIXED_S = 0.046
"""A prefill leg beyond its tokens: HTTP, scheduling, one step. Qwen3-32B in the announcement."""
PULL_S = 0.008
"""A pull beyond its tokens: Qwen3-32B in the announcement."""
MEMORY_SHARE = 0.9
"""Of GPU memory that an engine takes (vLLM's ``--gpu-memory-utilization``)."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine's machine. ``gbits``: line rate of all its interfaces. ``gpus``: that one engine spans.
    ``teraflops``: peak of all of them, bfloat16, dense. ``memory``: bytes of all of them; None: unknown."""

    name: str
    gbits: float
    gpus: int
    teraflops: float
    memory: float | None


_KNOWN = (
    Instance("cpu", 55.0, 1, 0.175, None),
    Instance("p4d", 4 * 100.0, 8, 8 * 312.0, 8 * 40e9),
    Instance("p5", 32 * 100.0, 8, 8 * 989.0, 8 * 80e9),
    Instance("p5en", 16 * 200.0, 8, 8 * 989.0, 8 * 141e9),
    Instance("p6-b200", 8 * 400.0, 8, 8 * 2250.0, 8 * 179e9),
    Instance("p6-b300", 16 * 400.0, 8, 8 * 2250.0, 8 * 268e9),
)
INSTANCES = {instance.name: instance for instance in _KNOWN}
