"""Turns as the reference proxy serves them: engines in turn, and decode's KV is pulled whenever there is any.

It has no exactness check of its own; the modelled engines give it ours, so that only speed is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from antiphon_server.bench.simulate.engine import Engine, Lease
from antiphon_server.bench.simulate.legs import Begun, decode, prefill
from antiphon_server.bench.simulate.memory import Talk
from antiphon_server.bench.simulate.served import Served, served
from antiphon_server.bench.simulate.workload import Turn
from antiphon_server.router.plan.plan import Plan, outcome
from antiphon_server.router.plan.reasons import Path, Reason

LEASE = 480.0
"""Seconds that decode keeps a finished turn for it."""


class Proxy:
    """``prefills``, ``decodes``: modelled engines. ``reuses``: False is plain P/D."""

    def __init__(self, prefills: Sequence[Engine], decodes: Sequence[Engine], *, reuses: bool = True) -> None:
        self._reuses = reuses
        self._prefills = cycle(prefills)
        self._decodes = cycle(decodes)
        self._kept: dict[str, tuple[Engine, Lease]] = {}
        self.evictions: dict[str, int] = {}

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    def budget(self) -> int:
        """There is none."""
        return 0

    async def serve(self, talk: Talk, index: int, turn: Turn) -> Served:
        """One turn."""
        source, destination = next(self._prefills), next(self._decodes)
        began = source.loop.time()
        kept = self._kept.pop(talk.name, None)
        handle = (kept[0], kept[1].name) if kept is not None else None
        filled = await prefill(source, talk, turn.prompt, handle)
        first: list[tuple[Begun, float]] = []
        lease = await decode(
            destination,
            talk,
            turn.prompt,
            turn.answer,
            (source, filled.lease),
            lambda leg: first.append((leg, source.loop.time())),
            keep=LEASE,
        )
        ended = source.loop.time()
        if self._reuses:
            self._kept[talk.name] = destination, lease
        else:
            destination.end(lease.name)
        plan = outcome(Plan(Path.REUSE, Reason.PLANNED), filled.match) if kept is not None else _FIRST
        return served(index, turn, plan, began, first[0][1], ended, first[0][0], filled)


_FIRST = Plan(Path.COLD, Reason.FIRST)
