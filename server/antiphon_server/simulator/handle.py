"""Handles as an engine writes them: where finished KV lies and, with a seal, which tokens it stands for."""

from __future__ import annotations

from antiphon_server.protocol import Handle, Match, Seal, pack_chain, sealed
from antiphon_server.simulator.job import Prefilled
from antiphon_server.simulator.sequence import Sequence as Tokens
from antiphon_server.simulator.settings import Settings


def write_handle(
    settings: Settings, engine_id: str, request_id: str, prefilled: Prefilled, deadline: float | None
) -> Handle:
    """The handle of a finished request. ``deadline``: decode's, on its clock; None for prefill's handle."""
    sequence, is_prefill = prefilled.sequence, deadline is None
    handle: Handle = {
        "do_remote_prefill": is_prefill,
        "do_remote_decode": not is_prefill,
        "remote_block_ids": [list(sequence.blocks)],
        "remote_engine_id": engine_id,
        "remote_request_id": request_id,
        "remote_host": settings.host,
        "remote_port": settings.side_channel_port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": sequence.computed,
        "remote_blocks_expiry_time": deadline,
        "transfer_mode": "read",
    }
    if is_prefill:
        handle["remote_prefill_cached_tokens"] = prefilled.cached
    return sealed(handle, _seal(settings, prefilled, is_prefill)) if settings.antiphon else handle


def is_whole(seal: Seal, sequence: Tokens) -> bool:
    """True when the sealed KV is the KV of exactly this prompt."""
    return (seal.chain, seal.tail, seal.tokens) == (
        pack_chain(sequence.keys),
        sequence.tail,
        len(sequence.tokens),
    )


def _seal(settings: Settings, prefilled: Prefilled, is_prefill: bool) -> Seal:
    sequence = prefilled.sequence
    return Seal(
        algorithm="sha256",
        seed=settings.hash_seed,
        block_size=settings.block_size,
        tokens=sequence.computed,
        chain=pack_chain(sequence.keys[: sequence.computed // settings.block_size]),
        tail=sequence.tail if is_prefill else None,
        matched=prefilled.cached if is_prefill else None,
        pulled=prefilled.pulled if is_prefill else None,
        match=prefilled.pull.match if is_prefill else Match.NONE,
    )
