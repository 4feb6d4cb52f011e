"""Symbolic KV: a block holds the name of what was computed, and over which earlier KV.

Real KV of a token depends on the token and on all KV before it. Here that dependence is a digest, the
*state*: equal states mean equal KV all the way back. KV that was computed for another prompt keeps the state
it was computed over, so it never looks like the KV that belongs in its place.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import NamedTuple


class Segment(NamedTuple):
    """Tokens computed in one go, over KV whose state was ``context``."""

    context: bytes
    tokens: tuple[int, ...]


BlockKv = tuple[Segment, ...]
"""Contents of one block, in order. One segment where one engine computed all of it over KV of its own."""


def root(model: str) -> bytes:
    """State before the first token."""
    return blake2b(model.encode(), digest_size=8).digest()


def length(kv: BlockKv) -> int:
    """Tokens in the block."""
    return sum(len(segment.tokens) for segment in kv)


def follow(state: bytes, kv: BlockKv) -> bytes:
    """State after a block that begins in ``state`` and holds ``kv``."""
    if not kv:
        return state
    digest = blake2b(state, digest_size=8)
    for segment in kv:
        digest.update(segment.context)
        digest.update(array("I", segment.tokens).tobytes())
    return digest.digest()


def extend(start: bytes, kv: BlockKv, tokens: tuple[int, ...]) -> BlockKv:
    """Compute ``tokens`` after ``kv``, in a block that begins in state ``start``."""
    if kv and kv[-1].context == follow(start, kv[:-1]):
        # What is here was computed over exactly the KV before it: two steps give the same as one.
        return (*kv[:-1], Segment(kv[-1].context, kv[-1].tokens + tokens))
    return (*kv, Segment(follow(start, kv), tokens))


def cut(kv: BlockKv, count: int) -> BlockKv:
    """The first ``count`` tokens."""
    kept: list[Segment] = []
    for segment in kv:
        if count <= 0:
            break
        kept.append(Segment(segment.context, segment.tokens[:count]))
        count -= len(segment.tokens)
    return tuple(kept)


def read(kv: BlockKv, block_id: int, count: int) -> BlockKv:
    """``count`` tokens' worth of the block, as a transfer reads it: what was never written reads as noise."""
    held = length(kv)
    if held >= count:
        return cut(kv, count)
    return (*kv, Segment(b"noise:%d" % block_id, (0,) * (count - held)))
