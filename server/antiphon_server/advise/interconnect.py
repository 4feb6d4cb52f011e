"""Question 2: whether the interconnect suffices. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.advise.hardware import Hardware
from antiphon_server.advise.outlook import Outlook
from antiphon_server.advise.turn import Turn
from antiphon_server.quantiles import quantile


@dataclass(frozen=True, slots=True)
class Interconnect:
    """``break_even``: tokens of a prefix from which on fetching is no slower than computing, None: never.
    ``above``: of the tokens that repeat, those in turns with a longer prefix. ``typical``: prefix of a
    returning turn of which the log tells what repeats, median; ``moving``, ``computing``: seconds for it.
    ``gigabytes_needed``: GB/s at which moving it would take half as long as computing it, which is what is
    worth a transfer; None: it is too short for that. ``slow``: the bytes of it, without what is fixed,
    take longer to move than to compute. ``moved``: GB that move from decode to prefill a returning turn,
    mean, if prefill's cache is cold."""

    break_even: int | None
    above: float
    typical: int
    moving: float
    computing: float
    gigabytes: float
    gigabytes_needed: float | None
    slow: bool
    moved: float


def interconnect(turns: Sequence[Turn], cold: Sequence[Outlook], hardware: Hardware) -> Interconnect:
    """``cold``: the turns' outlooks where prefill's cache is cold."""
    break_even = hardware.break_even()
    later = [turn for turn in turns if turn.index and turn.told]
    typical = int(quantile((turn.repeated for turn in later), 0.5, 0))
    repeated = sum(turn.repeated for turn in later)
    above = sum(t.repeated for t in later if break_even is not None and t.repeated >= break_even)
    computing = hardware.computing(typical, typical)
    room = computing / 2 - hardware.pull_fixed
    return Interconnect(
        break_even,
        above / repeated if repeated else 0.0,
        typical,
        hardware.pulling(typical),
        computing,
        hardware.gigabytes,
        typical * hardware.kv_bytes / room / 1e9 if room > 0 and typical else None,
        hardware.pull_token * typical > computing,
        sum(o.pulled for o in cold) * hardware.kv_bytes / 1e9 / len(later) if later else 0.0,
    )
