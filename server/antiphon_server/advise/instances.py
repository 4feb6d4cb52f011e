"""Machines that the adviser knows by name, and what they were measured to do.

Read, not measured by us: network interfaces and GPU memory from the vendor's tables, peak compute from the
GPUs' data sheets. The announcement measured two models on p5en; its figures are taken for those, and its
efficiency for all else.
"""

from __future__ import annotations

from dataclasses import dataclass

LINE_SHARE = 0.15
"""Of the line rate that a pull of KV reaches. The announcement's Qwen3-32B transfers on p5en grow by 100 ms
for 22,000 more tokens of 256 KiB: 58 GB/s of 400 GB/s. Descriptors are posted one by one, so block size and
layout weigh more than the line."""
DENSE_SHARE, MIXTURE_SHARE = 0.4, 0.1
"""Of peak compute that prefill reaches: 44 % with Qwen3-32B, 10 % with GLM-5, in the announcement."""
FIXED_S = 0.11
"""A prefill leg beyond its tokens: HTTP, scheduling, one step. Qwen3-32B in the announcement."""
PULL_S = 0.02
"""A pull beyond its tokens, in the announcement."""
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


@dataclass(frozen=True, slots=True)
class Points:
    """Two measured points of prefill and of a pull: (tokens, seconds)."""

    prefill: tuple[tuple[int, float], tuple[int, float]]
    pull: tuple[tuple[int, float], tuple[int, float]]
    source: str


MEASURED = {
    ("qwen3-32b", "p5en"): Points(
        ((2000, 0.153), (24000, 0.744)), ((2000, 0.030), (24000, 0.130)), "the announcement's measurements"
    ),
    ("glm-5", "p5en"): Points(
        ((2000, 0.500), (20000, 2.331)), ((2000, 0.029), (20000, 0.110)), "the announcement's measurements"
    ),
}
