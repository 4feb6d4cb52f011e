"""From vLLM's block hashes to a seal: which tokens a handle's KV stands for.

vLLM chains a hash per block over token ids, cache salt, LoRA and multimodal keys
(``vllm/v1/core/kv_cache_utils.py``), so equal digests at block *n* mean equal inputs for blocks 0..n.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.protocol import DIGEST_BYTES, Match, Seal, common_blocks, pack_chain, unpack_chain


@dataclass(frozen=True, slots=True)
class Hashing:
    """How an engine hashes blocks. ``unit``: tokens per hash; it divides ``block_size``."""

    algorithm: str
    seed: str
    block_size: int
    unit: int

    def digests(self, hashes: Sequence[bytes], tokens: int) -> list[bytes]:
        """One digest per full block of the first ``tokens`` tokens."""
        step = self.block_size // self.unit
        blocks = min(tokens // self.block_size, len(hashes) // step)
        return [bytes(hashes[(i + 1) * step - 1][:DIGEST_BYTES]) for i in range(blocks)]

    def seal(
        self,
        hashes: Sequence[bytes],
        tokens: int,
        *,
        tail: str | None = None,
        matched: int | None = None,
        pulled: int | None = None,
        match: Match = Match.NONE,
    ) -> Seal:
        """Seal over the first ``tokens`` tokens of a request whose block hashes are ``hashes``."""
        return Seal(
            algorithm=self.algorithm,
            seed=self.seed,
            block_size=self.block_size,
            tokens=tokens,
            chain=pack_chain(self.digests(hashes, tokens)),
            tail=tail,
            matched=matched,
            pulled=pulled,
            match=match,
        )

    def comparable(self, seal: Seal) -> bool:
        """True when the seal's digests can be held against this engine's own."""
        return (seal.algorithm, seal.seed, seal.block_size) == (self.algorithm, self.seed, self.block_size)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``tokens``: length of the handle's prefix that belongs to the prompt, whole blocks only."""

    tokens: int
    match: Match


def compare(hashing: Hashing, seal: Seal | None, hashes: Sequence[bytes], prompt_tokens: int) -> Verdict:
    """How much of a handle's KV is KV of this prompt.

    ``hashes`` are the prompt's own block hashes. The result is rounded down to a block: the handle's
    partial last block has no digest, and an unaligned cut would break the worker's pairing of blocks.
    """
    if seal is None:
        return Verdict(0, Match.UNSEALED)
    if not hashing.comparable(seal):
        return Verdict(0, Match.FOREIGN)
    theirs = unpack_chain(seal.chain)
    blocks = common_blocks(theirs, hashing.digests(hashes, prompt_tokens))
    if blocks == 0:
        return Verdict(0, Match.MISMATCH)
    return Verdict(blocks * hashing.block_size, Match.FULL if blocks == len(theirs) else Match.CUT)


def tail_digest(token_ids: Sequence[int]) -> str:
    """Hex digest of the ids after the last full block; of nothing, when there are none."""
    return hashlib.sha256(array("q", token_ids).tobytes()).hexdigest()[: 2 * DIGEST_BYTES]


def covers(hashing: Hashing, seal: Seal, hashes: Sequence[bytes], prompt: Sequence[int], needed: int) -> bool:
    """True when the seal stands for at least the first ``needed`` tokens of ``prompt``, token for token.

    Decode takes the whole prompt's KV from prefill, so a prefix is not enough here.
    """
    if not hashing.comparable(seal) or not needed <= seal.tokens <= len(prompt):
        return False
    full = seal.tokens // hashing.block_size
    theirs = unpack_chain(seal.chain)
    return (
        len(theirs) == full
        and theirs == hashing.digests(hashes, seal.tokens)
        and seal.tail == tail_digest(prompt[full * hashing.block_size : seal.tokens])
    )
