"""Models that the adviser knows by name: what a token's KV weighs, and what computing it takes.

KV bytes a token are layers x what a layer keeps, in bfloat16, read from the models' own ``config.json``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Model:
    """``kv_bytes``: of one token, over all layers. ``active``: parameters that a token passes through.
    ``attention``: floating-point operations of a token for each token before it. ``weights``: bytes that an
    engine holds. ``replicated``: every GPU of an engine keeps all of a token's KV, as with MLA, and pulls it.
    ``sparse``: attention looks at a bounded number of tokens. ``window``: layers with a sliding window, whose
    KV Antiphon's engines decline to reuse."""

    name: str
    kv_bytes: int
    active: float
    attention: float
    weights: float
    mixture: bool = False
    replicated: bool = False
    window: bool = False

    @property
    def attention_share(self) -> float:
        """What each token before it costs a token, of what its own parameters cost."""
        return self.attention / (2 * self.active)


def _grouped(
    name: str,
    layers: int,
    heads: int,
    kv_heads: int,
    head: int,
    *,
    active: float,
    weights: float,
    itemsize: int = 2,
    mixture: bool = False,
    window: bool = False,
) -> Model:
    """Attention with grouped heads: each layer keeps a key and a value for each KV head."""
    kept = layers * 2 * kv_heads * head * itemsize
    # Scores and their sum over values: two multiplications of 2 operations each.
    return Model(name, kept, active, 4.0 * layers * heads * head, weights, mixture=mixture, window=window)


def _latent(
    name: str,
    layers: int,
    heads: int,
    head: int,
    value: int,
    *,
    active: float,
    weights: float,
    indexer: int = 0,
    sparse: bool = False,
) -> Model:
    """Multi-head latent attention: each layer keeps 512 + 64 numbers for all heads together, and ``indexer``
    bytes to choose by where attention is sparse."""
    kept = layers * ((512 + 64) * 2 + indexer)
    attention = 0.0 if sparse else 2.0 * layers * heads * (head + value)
    return Model(name, kept, active, attention, weights, mixture=True, replicated=True)


_KNOWN = (
    _grouped("tiny", 4, 4, 2, 64, active=3.3e6, weights=13e6, itemsize=4),
    _grouped("smollm2", 30, 9, 3, 64, active=135e6, weights=538e6, itemsize=4),
    _grouped("llama-3.1-8b", 32, 32, 8, 128, active=8.0e9, weights=16e9),
    _grouped("llama-3.1-70b", 80, 64, 8, 128, active=70.6e9, weights=141e9),
    _grouped("qwen3-8b", 36, 32, 8, 128, active=8.2e9, weights=16.4e9),
    _grouped("qwen3-32b", 64, 64, 8, 128, active=32.8e9, weights=65.6e9),
    _grouped("qwen3-30b-a3b", 48, 32, 4, 128, active=3.3e9, weights=61e9, mixture=True),
    _grouped("qwen3-235b-a22b", 94, 64, 4, 128, active=22e9, weights=470e9, mixture=True),
    _grouped("gpt-oss-120b", 36, 64, 8, 64, active=5.1e9, weights=65e9, mixture=True, window=True),
    _latent("deepseek-v3", 61, 128, 192, 128, active=37e9, weights=685e9),
    _latent("glm-5", 78, 64, 256, 256, active=40e9, weights=750e9, indexer=132, sparse=True),
)
MODELS = {model.name: model for model in _KNOWN}


def find(name: str) -> Model | None:
    """A model by its name, or by a name that has it as a part, like ``Qwen/Qwen3-32B-FP8``. The longest
    counts."""
    plain = name.lower()
    parts = [known for known in MODELS if len(known) > 4 and known in plain]
    return MODELS.get(plain) or (MODELS[max(parts, key=len)] if parts else None)
