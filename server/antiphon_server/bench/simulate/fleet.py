"""The fleet to simulate."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 64
"""Engines of a role: what the simulator is meant and measured for."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """``prefill_tokens``, ``decode_tokens``: KV that an engine of the role holds. ``prefill_cache``: prefill
    finds prompts' beginnings in its own memory. ``block``: tokens. ``threshold``: fewer tokens than this are
    not pulled from decode. ``sequences``: that a decode engine runs at once. ``decode_lease``,
    ``prefill_lease``: seconds that an engine keeps a finished request's KV for a reader."""

    prefills: int = 1
    decodes: int = 1
    prefill_tokens: int = 2_000_000
    decode_tokens: int = 2_000_000
    prefill_cache: bool = True
    block: int = 128
    threshold: int = 64
    sequences: int = 256
    decode_lease: float = 60.0
    prefill_lease: float = 30.0

    def __post_init__(self) -> None:
        for option, engines in (("--prefill", self.prefills), ("--decode", self.decodes)):
            if not 1 <= engines <= MOST:
                raise ValueError(f"{option} {engines}: choose 1 to {MOST} engines of a role")
        for name in ("prefill_tokens", "decode_tokens", "block", "sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
