"""What pictures are drawn from: few points each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from antiphon_server.advise.hardware import Hardware
from antiphon_server.advise.outlook import Outlook
from antiphon_server.advise.retention import Retention
from antiphon_server.advise.turn import Turn
from antiphon_server.quantiles import weighted

Points = tuple[tuple[float, float], ...]
_STEPS = (*(i / 100 for i in range(1, 100)), 0.995, 1.0)


@dataclass(frozen=True, slots=True)
class Curves:
    """(x, y). ``gaps``: seconds, share of tokens that repeat after no longer gap. ``computing``, ``moving``:
    tokens of a prefix, seconds. ``prefixes``: tokens, share of returning turns with no longer prefix. TTFT:
    seconds, share of turns: ``off_cold``, ``on_cold``, ``off_warm``, ``on_warm``. ``pinned``: seconds,
    tokens."""

    gaps: Points
    computing: Points
    moving: Points
    prefixes: Points
    off_cold: Points
    on_cold: Points
    off_warm: Points
    on_warm: Points
    pinned: Points


def curves(
    turns: Sequence[Turn],
    hardware: Hardware,
    held: Retention,
    cold: Sequence[Outlook],
    warm: Sequence[Outlook],
) -> Curves:
    """Of the figures in an advice."""
    later = [turn for turn in turns if turn.index and turn.told]
    longest = max([turn.repeated for turn in later] + [1024])
    lengths = [max(1, longest * i // 40) for i in range(41)]
    start = held.timeline[0].at if held.timeline else 0.0
    return Curves(
        gaps=_curve((t.gap, float(t.repeated)) for t in later if t.gap is not None),
        computing=tuple((float(n), hardware.computing(n, n)) for n in lengths),
        moving=tuple((float(n), hardware.pulling(n)) for n in lengths),
        prefixes=_curve((float(t.repeated), 1.0) for t in later),
        off_cold=_curve((o.off, 1.0) for o in cold),
        on_cold=_curve((o.on, 1.0) for o in cold),
        off_warm=_curve((o.off, 1.0) for o in warm),
        on_warm=_curve((o.on, 1.0) for o in warm),
        pinned=tuple((step.at - start, float(step.tokens)) for step in held.timeline),
    )


def _curve(pairs: Iterable[tuple[float, float]]) -> Points:
    values = weighted(pairs)
    found = ((values.at(share), share) for share in _STEPS)
    return tuple((value, share) for value, share in found if value is not None)
