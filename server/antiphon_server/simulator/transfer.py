"""Moving KV between engines: vLLM's rules of what is pulled, and the network that stands for NIXL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon_server.protocol import Handle, Match, Seal, common_blocks, seal_of, unpack_chain
from antiphon_server.simulator.kv import BlockKv
from antiphon_server.simulator.settings import Settings

if TYPE_CHECKING:
    from antiphon_server.simulator.engine import SimulatedEngine

EXPIRY_MARGIN = 5.0
"""Seconds before its deadline from which a handle is declined."""

_NEEDED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class TransferError(Exception):
    """KV did not arrive: the other engine is gone, or the handle is malformed or has expired."""


class ExpiredError(TransferError):
    """The handle's deadline is past, or too near."""


class Pull(msgspec.Struct, frozen=True, kw_only=True):
    """What one request takes from elsewhere.

    ``tokens``: beyond those cached locally. ``readable``: the handle names a place, so the other side hears
    that it is done even when nothing is read.
    """

    tokens: int = 0
    readable: bool = False
    match: Match = Match.NONE


def names_a_place(handle: Mapping[str, Any]) -> bool:
    """True when the handle says where KV lies; vLLM silently ignores one that does not."""
    return bool(handle.get("remote_block_ids")) and all(key in handle for key in _NEEDED)


def plan_decode(handle: Mapping[str, Any], prompt: int, local: int) -> Pull:
    """What decode pulls from prefill: the whole prompt that it has not cached itself."""
    return Pull(tokens=max(0, prompt - local), readable=names_a_place(handle))


def plan_prefill(
    settings: Settings, handle: Mapping[str, Any], keys: Sequence[bytes], prompt: int, local: int
) -> Pull:
    """What prefill pulls from decode.

    A stock engine takes as many tokens as both sides have, and never asks whether they are the same ones.
    """
    if not names_a_place(handle):
        return Pull()
    told = handle.get("remote_num_tokens")
    remote = told if isinstance(told, int) else 0
    match = Match.NONE
    if settings.antiphon and not settings.reuse:
        return Pull(readable=True, match=Match.UNSUPPORTED)
    if settings.antiphon and settings.check:
        match, proven = compare(settings, seal_of(handle), keys)
        if match in (Match.UNSEALED, Match.FOREIGN, Match.MISMATCH):
            return Pull(readable=True, match=match)
        remote = min(remote, proven)
    count = min(remote, prompt) - local
    if count <= 0:
        return Pull(readable=True, match=Match.LOCAL)
    if count < settings.threshold:
        return Pull(readable=True, match=Match.THRESHOLD)
    return Pull(tokens=count, readable=True, match=match)


def compare(settings: Settings, seal: Seal | None, keys: Sequence[bytes]) -> tuple[Match, int]:
    """How far the sealed KV belongs to the prompt with these keys: the verdict, and tokens of it."""
    if seal is None:
        return Match.UNSEALED, 0
    ours = Seal(
        algorithm="sha256", seed=settings.hash_seed, block_size=settings.block_size, tokens=0, chain=""
    )
    if not seal.comparable(ours):
        return Match.FOREIGN, 0
    chain = unpack_chain(seal.chain)
    common = common_blocks(chain, keys)
    if common == 0:
        return Match.MISMATCH, 0
    return (Match.FULL if common == len(chain) else Match.CUT), common * settings.block_size


def cut_blocks(handle: Handle, match: Match, blocks: int) -> list[int]:
    """Ids of the blocks offered, cut to the proven ones: the transfer pairs blocks from the end.

    Raises:
        TransferError: the handle does not list blocks of one group.
    """
    try:
        (group,) = handle["remote_block_ids"]
        offered = [int(number) for number in group]
    except (TypeError, ValueError) as error:
        raise TransferError(
            f"remote_block_ids {handle['remote_block_ids']!r} is not one list of ids"
        ) from error
    return offered[:blocks] if match in (Match.FULL, Match.CUT) else offered


@dataclass(slots=True)
class SimulatedCluster:
    """Engines that can read each other's KV. An engine that is not here (any more) cannot be reached."""

    _engines: dict[str, SimulatedEngine] = field(default_factory=dict)

    def join(self, engine: SimulatedEngine) -> None:
        """Make the engine reachable under its present id."""
        self._engines[engine.engine_id] = engine

    def leave(self, engine_id: str) -> None:
        """Make the engine unreachable."""
        self._engines.pop(engine_id, None)

    def deadline_check(self, handle: Mapping[str, Any]) -> None:
        """See that the handle may still be read.

        Raises:
            TransferError: the engine is not reachable.
            ExpiredError: the handle is within five seconds of its deadline, on that engine's clock.
        """
        remote = self._remote(handle)
        deadline = handle.get("remote_blocks_expiry_time")
        if deadline is not None and remote.now() + EXPIRY_MARGIN >= deadline:
            raise ExpiredError(f"handle of {handle['remote_request_id']} expires at {deadline:.1f}: not read")

    def read(self, handle: Mapping[str, Any], counts: Mapping[int, int]) -> list[BlockKv]:
        """What is in these blocks now, ``counts`` tokens of each, whoever they belong to by now.

        Raises:
            TransferError: the engine is not reachable.
        """
        return self._remote(handle).read_blocks(counts)

    def notify(self, handle: Mapping[str, Any]) -> None:
        """Tell the other side that its blocks are not needed any more."""
        remote = self._engines.get(str(handle["remote_engine_id"]))
        if remote is not None:
            remote.notified(str(handle["remote_request_id"]))

    def _remote(self, handle: Mapping[str, Any]) -> SimulatedEngine:
        engine_id = str(handle["remote_engine_id"])
        if engine_id not in self._engines:
            raise TransferError(f"engine {engine_id} is not reachable: it stopped or restarted")
        return self._engines[engine_id]
