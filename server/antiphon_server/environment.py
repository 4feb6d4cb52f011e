"""Environment variables of ours: what they are called, and which one a misspelt name means."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

PREFIX = "ANTIPHON_"
ENGINE_PREFIX = f"{PREFIX}ENGINE_"
ENGINE_VARIABLES = frozenset(
    {
        f"{ENGINE_PREFIX}ADDRESS",
        f"{ENGINE_PREFIX}BLOCK_SIZE",
        f"{ENGINE_PREFIX}DATA_PARALLEL",
        f"{ENGINE_PREFIX}DECODE_TTL",
        f"{ENGINE_PREFIX}FAILURE_POLICY",
        f"{ENGINE_PREFIX}FLAGS",
        f"{ENGINE_PREFIX}GPUS",
        f"{ENGINE_PREFIX}HOST",
        f"{ENGINE_PREFIX}INDEX",
        f"{ENGINE_PREFIX}KEY",
        f"{ENGINE_PREFIX}KV_SPACE",
        f"{ENGINE_PREFIX}MAX_MODEL_LEN",
        f"{ENGINE_PREFIX}MODEL",
        f"{ENGINE_PREFIX}PORT",
        f"{ENGINE_PREFIX}PREFILL_CACHE",
        f"{ENGINE_PREFIX}PRESET",
        f"{ENGINE_PREFIX}SIDE_CHANNEL_PORT",
        f"{ENGINE_PREFIX}STOCK",
        f"{ENGINE_PREFIX}TENSOR_PARALLEL",
        f"{ENGINE_PREFIX}THREADS",
        f"{ENGINE_PREFIX}THRESHOLD",
    }
)
"""Environment that ``antiphon engine`` reads. A router that shares it reads the key alone."""
OF_UNITS = frozenset({f"{ENGINE_PREFIX}ROLE"})
"""Environment of an engine that its systemd unit reads."""

NEAR = 0.75
"""How alike two names must be, without what all of ours begin with: it would make any two alike."""


def meant(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that ``name`` is nearly, or is in other capitals; None where there is none."""
    own = name.upper()
    if not own.startswith(PREFIX):
        return None
    short = {one.removeprefix(PREFIX): one for one in sorted(known)}
    near = get_close_matches(own.removeprefix(PREFIX), short, n=1, cutoff=NEAR)
    return short[near[0]] if near else None
