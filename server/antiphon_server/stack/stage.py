"""How far a starting engine is, read from its log."""

from __future__ import annotations

import re

_STAGES = (
    (r"Application startup complete", "serving"),
    (r"Starting vLLM.* server on|Started server process", "starting the HTTP server"),
    (r"init engine .*took", "engine is initialised"),
    (r"nixl|NIXL", "connecting NIXL"),
    (r"KV cache size|# (CPU|GPU) blocks|kv_cache", "allocating KV cache"),
    (r"Loading weights took|Model loading took", "weights are loaded"),
    (r"Loading (safetensors|weights)|Starting to load model|load_model", "loading weights"),
    (r"Initializing a V1 LLM engine|EngineCore", "starting the engine core"),
    (r"non-default args|vLLM API server version|Resolved architecture", "reading the configuration"),
)
_PATTERNS = tuple((re.compile(pattern), words) for pattern, words in _STAGES)


def stage(log: str) -> str:
    """Words for the last line of the log that tells one."""
    for line in reversed(log.splitlines()):
        for pattern, words in _PATTERNS:
            if pattern.search(line):
                return words
    return "starting Python"
