"""Convert a GGUF file to float32 safetensors. Run as ``python -m``; lines with ``>`` tell progress."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def convert(gguf: Path, folder: Path, context: int) -> None:
    """Write config, weights and tokenizer of ``gguf`` into ``folder``."""
    print("> loading torch and transformers", flush=True)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    print("> reading the tokenizer", flush=True)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    print("> dequantising the weights", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    print("> writing float32 safetensors", flush=True)
    model.save_pretrained(folder)
    tokenizer = folder / "tokenizer_config.json"
    settings = json.loads(tokenizer.read_text())
    settings |= {"model_max_length": context, "tokenizer_class": "PreTrainedTokenizerFast"}
    tokenizer.write_text(json.dumps(settings, indent=2) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
