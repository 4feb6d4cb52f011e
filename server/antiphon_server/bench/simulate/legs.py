"""The two legs of a turn on modelled engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from antiphon_server.bench.simulate.engine import Engine, Lease
from antiphon_server.bench.simulate.memory import Talk
from antiphon_server.protocol import Match

_MARGIN = 5.0
"""Seconds before a lease's end from which prefill declines to pull."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A prompt's KV is on prefill, under ``lease``. Tokens: ``local`` were there, ``pulled`` came from
    decode. ``seconds``: of the leg; ``pulling``: of the pull."""

    lease: Lease
    local: int
    pulled: int
    match: Match
    seconds: float
    pulling: float


async def prefill(
    engine: Engine, talk: Talk, prompt: int, source: tuple[Engine, str] | None, *, text: bool = True
) -> Filled:
    """Bring a prompt's KV together. ``source``: the decode engine that holds some, and its lease, which is
    over when this returns. ``text``: the engine has to tokenise."""
    owner, model, loop = object(), engine.model, engine.loop
    arrived = loop.time()
    if text and model.tokenize:
        await asyncio.sleep(model.tokenize * prompt)
    await engine.admit(talk, owner, prompt)
    local = engine.memory.found(talk, prompt)
    pulled, match, began = 0, Match.NONE, loop.time()
    if source is not None:
        holder, name = source
        pulled, match = _agreed(holder, name, talk, prompt, local, engine)
        if pulled:
            await engine.fetch(model.pulling(pulled))
        holder.end(name)
    pulling = loop.time() - began
    have = min(local + pulled, prompt - 1)
    await asyncio.sleep(model.prefill)
    await engine.compute(prompt - have, have)
    lease = engine.grant(talk, owner, prompt, engine.fleet.prefill_lease)
    local = min(local, have)
    return Filled(lease, local, have - local, match, loop.time() - arrived, pulling)


def _agreed(
    holder: Engine, name: str, talk: Talk, prompt: int, local: int, engine: Engine
) -> tuple[int, Match]:
    """Tokens to pull, and the word for it."""
    lease, block = holder.leases.get(name), engine.fleet.block
    if lease is None or lease.deadline - _MARGIN <= engine.loop.time():
        return 0, Match.FAILED
    same = talk.common(lease.turn, lease.tokens)
    whole = min(same, prompt) // block * block
    match = Match.FULL if same >= lease.tokens else Match.CUT if whole else Match.MISMATCH
    if match is Match.MISMATCH:
        return 0, match
    pulled = whole - local
    if pulled <= 0:
        return 0, Match.LOCAL
    return (pulled, match) if pulled >= engine.fleet.threshold else (0, Match.THRESHOLD)


@dataclass(frozen=True, slots=True)
class Begun:
    """Decode gave its first token. ``cached``: prompt tokens that it neither computed nor fetched;
    ``fetched``: from prefill."""

    cached: int
    fetched: int
    computed: int


async def decode(
    engine: Engine,
    talk: Talk,
    prompt: int,
    answer: int,
    source: tuple[Engine, Lease] | None,
    begun: Callable[[Begun], None],
    *,
    text: bool = True,
    keep: float | None = None,
) -> Lease:
    """Answer. ``source``: prefill's KV, which is free afterwards; None: decode computes what it lacks.
    ``begun`` is called at the first token. ``keep``: seconds that the KV stays for a reader; None: as the
    fleet says."""
    owner, model = object(), engine.model
    if text and model.tokenize:
        await asyncio.sleep(model.tokenize * prompt)
    await engine.admit(talk, owner, prompt + answer)
    cached, fetched = engine.memory.found(talk, prompt), 0
    if source is not None:
        holder, lease = source
        fetched = max(0, prompt - 1 - cached)
        if fetched:
            await engine.fetch(model.handing_over(fetched))
        holder.end(lease.name)
    else:
        await asyncio.sleep(model.prefill)
    computed = prompt - cached - fetched
    await engine.compute(computed, cached + fetched)
    begun(Begun(cached, fetched, computed))
    if answer > 1:
        over: asyncio.Future[None] = engine.loop.create_future()
        engine.steps.stream(answer - 1, lambda: over.set_result(None))
        await over
    seconds = engine.fleet.decode_lease if keep is None else keep
    return engine.grant(talk, owner, prompt + answer - 1, seconds)
