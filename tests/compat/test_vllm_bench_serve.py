"""``vllm bench serve`` runs against the router unchanged; it names no conversation."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.stack.models.tokenizers import byte_tokenizer, save
from rig import guide, peers
from rig.recipe import turns_of

PAGE = "benchmark-tools.md"
_SUCCEEDED = re.compile(r"^Successful requests: +(\d+)", re.MULTILINE)
_FAILED = re.compile(r"^Failed requests: +(\d+)", re.MULTILINE)
_GENERATED = re.compile(r"^Total generated tokens: +(\d+)", re.MULTILINE)


def test_random_prompts_are_served_as_plain_turns(simulated_stack: Any, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    save(byte_tokenizer(), tokenizer, context=4096)
    stack = simulated_stack()
    program, *words = guide.command(
        PAGE, "bench-serve", ROUTER=stack.router, MODEL="simulated", TOKENIZER=tokenizer
    )
    assert program == "python"
    output = peers.output_of_peer(sys.executable, *words, folder=tmp_path)
    assert (_SUCCEEDED.findall(output), _FAILED.findall(output)) == (["20"], ["0"])
    assert _GENERATED.findall(output) == [str(20 * 16)]
    assert turns_of(stack.router) == {("cold", "anonymous"): 20}
