"""Tokenizers of the generated models: one token a byte, and a small BPE."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
BPE_SIZE = 1024

_VOCABULARY = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said
what its about than into them can only other time new some could these two may first then do any like my
now over such our man me even most made after also did many off before must well back through years much
where your way down should because long each just state people those too mister how little world year file
line test error value name type return function class import self read write open close path search result
tool call weather city price flight ticket order user assistant system model token cache prefill
"""


def byte_alphabet() -> list[str]:
    """The printable stand-in of each byte in byte-level vocabularies, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in = {byte: chr(byte) for byte in plain}
    stand_in |= {byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in stand_in)}
    return [stand_in[byte] for byte in range(256)]


def byte_tokenizer() -> Tokenizer:
    """Token id = byte value; the specials follow at 256."""
    from tokenizers import Tokenizer, models

    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_alphabet())}
    return _with_bytes(Tokenizer(models.BPE(vocab=vocabulary, merges=[])))


def bpe_tokenizer() -> Tokenizer:
    """A byte-level BPE of :data:`BPE_SIZE` tokens, trained on a generated text; equal in every process."""
    from tokenizers import Tokenizer, models, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE - len(SPECIALS), initial_alphabet=sorted(byte_alphabet()), show_progress=False
    )
    bare = _with_bytes(Tokenizer(models.BPE()), specials=False)
    bare.train_from_iterator(_corpus(), trainer)
    return _with_bytes(bare)


def save(tokenizer: Tokenizer, folder: Path, *, context: int) -> None:
    """Write it the way ``AutoTokenizer`` reads it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _with_bytes(tokenizer: Tokenizer, *, specials: bool = True) -> Tokenizer:
    from tokenizers import AddedToken, decoders, pre_tokenizers

    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    if specials:
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def _corpus() -> list[str]:
    draw = random.Random(7)
    words = _VOCABULARY.split()
    prose = [" ".join(draw.choices(words, k=12)) + ". " for _ in range(1500)]
    calls = [
        json.dumps({"name": draw.choice(words), "arguments": {draw.choice(words): draw.randrange(1000)}})
        for _ in range(300)
    ]
    return prose + calls
