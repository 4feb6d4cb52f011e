"""How far a starting engine is, read from its log."""

from __future__ import annotations

import re

_STAGES = (
    (r"Application startup complete", "serving"),
    (r"Starting vLLM server on|Started server process", "starting the HTTP server"),
    (r"init engine .* took", "engine is initialised"),
    (r"Initializing NIXL w|Initialized NIXL agent|Registering KV_Caches", "registering KV with NIXL"),
    (r"KV cache size:", "allocating the KV cache"),
    (r"Loading weights took", "weights are loaded"),
    (r"Starting to load model|Loading safetensors", "loading weights"),
    (r"Initializing a V1 LLM engine", "starting the engine core"),
    (r"non-default args:|Resolved architecture:", "reading the configuration"),
)
_PATTERNS = tuple((re.compile(pattern), words) for pattern, words in _STAGES)


def stage(log: str) -> str:
    """Words for the last line of the log that tells one."""
    for line in reversed(log.splitlines()):
        for pattern, words in _PATTERNS:
            if pattern.search(line):
                return words
    return "starting Python"
