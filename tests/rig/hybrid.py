"""A random model whose layers keep two kinds of KV: sliding windows and full attention."""

from __future__ import annotations

import shutil
from pathlib import Path

from antiphon_server.stack.models import resolve

WINDOW = 64
CONTEXT = 2048
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


def hybrid_model(folder: Path) -> Path:
    """Write it into ``folder``, with the tokenizer of ``tiny``."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    tiny = Path(resolve("tiny").path)
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=260,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
        eos_token_id=257,
        pad_token_id=258,
        bos_token_id=None,
        torch_dtype="float32",
    )
    Gemma3ForCausalLM(config).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(tiny / name, folder / name)
    return folder
