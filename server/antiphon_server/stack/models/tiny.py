"""Random Qwen3 models of 3.3 million parameters: no meaning, but real attention, KV and tokens.

``tiny`` reads and writes one token a byte and answers in printable ASCII only, so the text of its answer
always tokenises to the ids it sampled. ``tiny-bpe`` has a BPE tokenizer, and its text hardly ever does.

Attention is peaked and logits are wide, so that an answer computed on foreign KV differs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon_server.stack.models import tokenizers
from antiphon_server.stack.models.cache import build_once

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

    Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

VERSION = 1
"""Raise it when a change makes other weights or tokens: the folder's name carries it."""

CONTEXT = 32768
HIDDEN = 256
INNER = 768
LAYERS = 4
HEADS = 4
KV_HEADS = 2
HEAD = 64
SHARPNESS = 2.2
"""Weight of the norms of queries and keys: attention scores have about its square as deviation."""
REACH = 2.0
"""Gain of what attention reads over what the token itself says."""
LOGITS = 0.2
"""Deviation of the output head's weights."""
SEED = 20261129


def location(cache: Path, *, bpe: bool = False) -> Path:
    """Where the model lies, or will."""
    return cache / f"{'tiny-bpe' if bpe else 'tiny'}-{VERSION}"


def tiny(cache: Path, *, bpe: bool = False) -> Path:
    """Folder of the model, generated on first use (a second)."""

    def build(folder: Path) -> None:
        tokenizer = tokenizers.bpe_tokenizer() if bpe else tokenizers.byte_tokenizer()
        _write(folder, tokenizer)

    return build_once(location(cache, bpe=bpe), build, valid=lambda folder: folder.is_dir())


def _write(folder: Path, tokenizer: Tokenizer) -> None:
    from safetensors.numpy import save_file

    tokenizers.save(tokenizer, folder, context=CONTEXT)
    size = tokenizer.get_vocab_size()
    vocabulary = tokenizer.get_vocab()
    end, pad = vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]
    (folder / "config.json").write_text(json.dumps(_config(size, end, pad), indent=2) + "\n")
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": end, "pad_token_id": pad}) + "\n"
    )
    save_file(_weights(tokenizer), folder / "model.safetensors", metadata={"format": "pt"})


def _config(vocabulary: int, end: int, pad: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": end,
        "pad_token_id": pad,
        "bos_token_id": None,
        "torch_dtype": "float32",
    }


def _weights(tokenizer: Tokenizer) -> Weights:
    import numpy as np

    draw = np.random.Generator(np.random.PCG64(SEED))

    def normal(rows: int, columns: int, deviation: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (draw.standard_normal((rows, columns), dtype=np.float32) * deviation).astype(np.float32)

    def linear(rows: int, columns: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return normal(rows, columns, columns**-0.5)

    def constant(size: int, value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.full(size, value, dtype=np.float32)

    size = tokenizer.get_vocab_size()
    weights: Weights = {"model.embed_tokens.weight": normal(size, HIDDEN, 1.0)}
    for layer in range(LAYERS):
        weights |= {
            f"model.layers.{layer}.{name}.weight": value
            for name, value in {
                "self_attn.q_proj": linear(HEADS * HEAD, HIDDEN),
                "self_attn.k_proj": linear(KV_HEADS * HEAD, HIDDEN),
                "self_attn.v_proj": linear(KV_HEADS * HEAD, HIDDEN),
                "self_attn.o_proj": linear(HIDDEN, HEADS * HEAD) * np.float32(REACH),
                "self_attn.q_norm": constant(HEAD, SHARPNESS),
                "self_attn.k_norm": constant(HEAD, SHARPNESS),
                "mlp.gate_proj": linear(INNER, HIDDEN),
                "mlp.up_proj": linear(INNER, HIDDEN),
                "mlp.down_proj": linear(HIDDEN, INNER),
                "input_layernorm": constant(HIDDEN, 1.0),
                "post_attention_layernorm": constant(HIDDEN, 1.0),
            }.items()
        }
    weights["model.norm.weight"] = constant(HIDDEN, 1.0)
    head = normal(size, HIDDEN, LOGITS)
    head[[token for token in range(size) if not _printable(tokenizer, token)]] = 0.0
    weights["lm_head.weight"] = head
    return weights


def _printable(tokenizer: Tokenizer, token: int) -> bool:
    text = tokenizer.decode([token])
    return bool(text) and text.isascii() and text.isprintable()
