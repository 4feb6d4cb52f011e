"""Expected TTFT of every turn without reuse and with it, by the router's own forecast and plan. Pure.

Waiting behind other turns is not in it: what reuse saves there comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antiphon_server.advise.engines import KnownRates
from antiphon_server.advise.fate import Fate
from antiphon_server.advise.hardware import Hardware
from antiphon_server.advise.turn import Turn
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.plan.forecast import Growth, forecast
from antiphon_server.router.plan.plan import EngineState, Expected, plan
from antiphon_server.router.plan.reasons import Path, Reason
from antiphon_server.router.store.frontier import Frontier

_PREFILL, _DECODE = "prefill", "decode"
_ENGINE = EngineState(healthy=True, epoch="", stock=False, reuse=True, caches=True)
_KEY = Key("", "", "", "")


@dataclass(frozen=True, slots=True)
class Policy:
    """As the router's settings of these names. ``streams``: that decode beside a turn; above 0, an append may
    take ``stall`` seconds from them at most. ``least``: prefixes shorter than that are computed
    (``kv_recompute_threshold``)."""

    paths: frozenset[Path] = frozenset(Path)
    stall: float = 0.5
    streams: int = 8
    least: int = 64


@dataclass(frozen=True, slots=True)
class Outlook:
    """One turn, in seconds. ``off``, ``on``: TTFT. ``work_off``, ``work_on``: that a prefill engine is busy.
    ``burden``: that a decode engine computes. ``pulled``: tokens that move from decode to prefill."""

    path: Path
    reason: Reason
    off: float
    on: float
    work_off: float
    work_on: float
    burden: float = 0.0
    pulled: int = 0


def outlooks(
    turns: Sequence[Turn], fates: Sequence[Fate], hardware: Hardware, policy: Policy, *, warm: bool
) -> list[Outlook]:
    """``warm``: prefill's own cache holds the last prompt; else it holds nothing, as where it evicted the
    conversation, restarted, or is another engine than last time."""
    rates = KnownRates(hardware)
    return [
        _outlook(turn, fate, rates, hardware, policy, warm=warm)
        for turn, fate in zip(turns, fates, strict=True)
    ]


def _outlook(
    turn: Turn, fate: Fate, rates: KnownRates, hardware: Hardware, policy: Policy, *, warm: bool
) -> Outlook:
    local = turn.local if warm else 0
    new = max(1, turn.prompt - turn.repeated)
    held = turn.prompt - new
    rates.local = min(1.0, local / held) if held else 0.0
    grown = Growth(held, new, known=turn.extends)
    expected = _forecast(grown, rates, policy)
    cold, reuse, append = expected.cold or 0.0, expected.reuse or 0.0, expected.append or 0.0
    local = min(local, held)
    work_cold = hardware.prefill(turn.prompt - local, turn.prompt)
    as_today = Outlook(Path.COLD, Reason.FIRST, cold, cold, work_cold, work_cold)
    if fate is Fate.FIRST:
        return as_today
    if fate is not Fate.KEPT:
        return replace(as_today, reason=Reason.LOST)
    planned = expected
    if not turn.extends:
        # The router sees only that the history was changed, and takes half of it for held.
        half = min(turn.held, turn.prompt) // 2
        rates.local = min(1.0, local / half) if half else 0.0
        planned = _forecast(Growth(half, turn.prompt - half, known=False), rates, policy)
    chosen = plan(
        Frontier(_KEY, b"", "", "", "", turn.held, math.inf, 0.0, turn.held),
        absent=Reason.FIRST,
        holder=_ENGINE,
        prefill=_ENGINE,
        decode=_ENGINE,
        stays=True,
        now=0.0,
        margin=0.0,
        expected=planned,
        paths=policy.paths,
    )
    if chosen.path is Path.APPEND:
        return Outlook(chosen.path, chosen.reason, cold, append, work_cold, 0.0, expected.burden or 0.0)
    pulled = held - local
    if chosen.path is Path.REUSE and pulled < policy.least:
        return replace(as_today, reason=Reason.LOCAL if held and local >= held else Reason.THRESHOLD)
    if chosen.path is Path.REUSE:
        busy = hardware.prefill(new, turn.prompt) + hardware.pulling(pulled)
        return Outlook(chosen.path, chosen.reason, cold, reuse, work_cold, busy, pulled=pulled)
    return replace(as_today, reason=chosen.reason)


def _forecast(grown: Growth, rates: KnownRates, policy: Policy) -> Expected:
    return forecast(
        grown,
        rates,
        prefill=_PREFILL,
        decode=_DECODE,
        same_prefill=True,
        streams=policy.streams,
        room=policy.stall,
    )
