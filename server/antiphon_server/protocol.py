"""Wire types between router and engine, protocol 1.

The only module that the router, the simulator and the engine plug-in share. It knows nothing of vLLM
and nothing of HTTP frameworks, so both sides can import it.

**Handle.** vLLM calls it ``kv_transfer_params``: a dict that says where finished KV lives. It is opaque to
the router, which forwards every key. Antiphon adds one key, :data:`HANDLE_KEY`, that holds a :class:`Seal`.

**Stream.** A request with the header :data:`PROTOCOL_HEADER` gets its handle on a stream too, as one SSE
event ``data: {"object": "antiphon.handle", "kv_transfer_params": {...}}`` right before ``data: [DONE]`` or
``event: message_stop``; ``/v1/responses`` carries it by itself, in ``response.completed``.
Requests without that header see an engine that behaves like stock vLLM.

**Prompt.** Replies to such requests say in :data:`PROMPT_HEADER` how long the prompt was and how much of it
was not computed: ``tokens=<n>; cached=<m>``. On a stream the head waits for the first output, which knows;
streams of ``/v1/responses`` begin earlier, so they do not say it.

**Leg.** They also say in :data:`LEG_HEADER` which request they answer, by its ``X-Request-Id``: a reply that
came out of turn cannot pass for another's. By the same name what a leg keeps can be released when its handle
never arrived.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal

import msgspec

PROTOCOL = 1
PROTOCOL_HEADER = "X-Antiphon-Protocol"
PROMPT_HEADER = "X-Antiphon-Prompt"
LEG_HEADER = "X-Antiphon-Leg"
HANDLE_KEY = "antiphon"
HANDLE_OBJECT = "antiphon.handle"
INFO_PATH = "/antiphon/info"
LEASES_PATH = "/antiphon/leases"

DIGEST_BYTES = 8
"""Bytes kept of each block's chained hash. A digest covers its block and all before it."""

_PROMPT = re.compile(r"tokens=(\d{1,9}); cached=(\d{1,9})")

Handle = dict[str, Any]
"""``kv_transfer_params`` as an engine returned them."""


class Match(StrEnum):
    """What prefill did with the handle it was sent."""

    NONE = "none"  # no handle came with the request
    FULL = "full"  # every full block the handle offered belongs to the prompt
    CUT = "cut"  # the prompt diverges inside; the common prefix was taken
    MISMATCH = "mismatch"  # no common block
    LOCAL = "local"  # prefill's own cache holds all that the handle could give
    THRESHOLD = "threshold"  # too short to be worth a transfer
    UNSEALED = "unsealed"  # the handle carries no prefix chain, so it cannot be checked
    FOREIGN = "foreign"  # chain of another hash algorithm, seed or block size
    FAILED = "failed"  # the transfer failed or was declined; prefill computed instead
    UNSUPPORTED = "unsupported"  # this engine cannot reuse (see Info.reuse_reason)


class Seal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Antiphon's part of a handle: which tokens the KV stands for, and what prefill made of it.

    ``tokens``: tokens whose KV is complete. ``chain``: see :func:`pack_chain`; one digest per *full* block.
    ``tail``: hex digest of the tokens after the last full block, set by prefill only: decode needs the whole
    prompt, not a prefix. ``matched``: prompt tokens prefill did not compute (local cache and transfer);
    ``pulled``: those of them that came from decode.
    """

    algorithm: str
    seed: str
    block_size: int
    tokens: int
    chain: str
    protocol: int = PROTOCOL
    tail: str | None = None
    matched: int | None = None
    pulled: int | None = None
    match: Match = Match.NONE

    def comparable(self, other: Seal) -> bool:
        """True when both chains hash the same way, so equal digests mean equal tokens."""
        return (self.protocol, self.algorithm, self.seed, self.block_size) == (
            other.protocol,
            other.algorithm,
            other.seed,
            other.block_size,
        )


class Renewal(msgspec.Struct, frozen=True):
    """Ask for ``id``'s blocks to stay for ``ttl`` seconds from now."""

    id: str
    ttl: float


class LeaseRequest(msgspec.Struct, frozen=True):
    """Body of ``POST /antiphon/leases``. Ids are the handles' ``remote_request_id``. ``legs``: requests by
    the ``X-Request-Id`` they came with; what they keep, or are about to, is released too. Not answered by
    name."""

    renew: list[Renewal] = []
    release: list[str] = []
    legs: list[str] = []


Deadline = float | Literal["unknown"]
"""Seconds on the engine's monotonic clock, the one ``remote_blocks_expiry_time`` is stamped with."""


class LeaseReply(msgspec.Struct, frozen=True):
    """New deadline of each named lease, or ``"unknown"``; and how many finished requests are pinned now."""

    leases: dict[str, Deadline]
    pinned: int


class LeaseLimits(msgspec.Struct, frozen=True):
    """Seconds. ``decode``: what a finished decode pins for. ``prefill``: what a prefill waits to be read.
    ``longest``: the most a renewal grants."""

    decode: float
    prefill: float
    longest: float


class Info(msgspec.Struct, frozen=True):
    """Answer of ``GET /antiphon/info``. ``epoch`` changes with every start of the engine. ``capacity``:
    tokens of KV that the engine holds at most, 0 if unknown. ``prefix_caching``: it finds the KV of a
    prompt's beginning in its own memory. ``text_only``: it refuses prompts that are more than token ids
    (images, embeddings). ``names_legs``: its replies carry :data:`LEG_HEADER`."""

    protocol: int
    engine_id: str
    epoch: str
    role: Literal["prefill", "decode", "both"]
    model: str
    vllm: str
    nixl: str
    block_size: int
    kv_groups: list[str]
    tensor_parallel: int
    data_parallel: int
    threshold: int
    capacity: int
    leases: LeaseLimits
    reuse: bool
    reuse_reason: str | None = None
    prefix_caching: bool = False
    dtype: str | None = None
    text_only: bool = False
    names_legs: bool = False


class Prompt(msgspec.Struct, frozen=True):
    """A prompt's length, and how much of it the engine found in its cache or fetched, in tokens."""

    tokens: int
    cached: int

    def header(self) -> str:
        """Value of :data:`PROMPT_HEADER`."""
        return f"tokens={self.tokens}; cached={self.cached}"


def read_prompt(value: str | None) -> Prompt | None:
    """Inverse of :meth:`Prompt.header`; None where it is missing or malformed."""
    found = _PROMPT.fullmatch(value) if value is not None else None
    return Prompt(int(found[1]), int(found[2])) if found is not None else None


def of_leg(request_id: str, leg: str) -> bool:
    """An engine made this id for that leg: ``chatcmpl-<leg>-<random>``, ``cmpl-<leg>-0-<random>``. Requests
    of ``/v1/responses`` are not named after their legs."""
    return f"-{leg}-" in request_id


def pack_chain(digests: Iterable[bytes]) -> str:
    """Base64 of the digests, each cut to :data:`DIGEST_BYTES`, joined."""
    return base64.b64encode(b"".join(d[:DIGEST_BYTES] for d in digests)).decode("ascii")


def unpack_chain(chain: str) -> list[bytes]:
    """Inverse of :func:`pack_chain`.

    Raises:
        ValueError: not base64, or not a whole number of digests.
    """
    raw = _joined(chain)
    return [raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)]


def _joined(chain: str) -> bytes:
    try:
        raw = base64.b64decode(chain, validate=True)
    except binascii.Error as error:
        raise ValueError(f"prefix chain is not base64: {error}") from error
    if len(raw) % DIGEST_BYTES:
        raise ValueError(f"prefix chain has {len(raw)} bytes, not a multiple of {DIGEST_BYTES}")
    return raw


def common_blocks(theirs: Sequence[bytes], ours: Sequence[bytes]) -> int:
    """Number of leading blocks both chains share. ``ours`` may hold uncut digests."""
    count = 0
    for left, right in zip(theirs, ours, strict=False):
        if left[:DIGEST_BYTES] != right[:DIGEST_BYTES]:
            break
        count += 1
    return count


def seal_of(handle: Mapping[str, Any]) -> Seal | None:
    """The handle's seal, or None where there is none or it is malformed (then it proves nothing)."""
    try:
        seal = msgspec.convert(handle.get(HANDLE_KEY), Seal)
        _joined(seal.chain)
    except (msgspec.ValidationError, ValueError):
        return None
    return seal if seal.protocol == PROTOCOL else None


def sealed(handle: Mapping[str, Any], seal: Seal) -> Handle:
    """A copy of the handle that carries the seal."""
    return {**handle, HANDLE_KEY: msgspec.to_builtins(seal)}
