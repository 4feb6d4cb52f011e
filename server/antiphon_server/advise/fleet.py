"""How many engines so much traffic takes, by what a conversation asks of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphon_server.advise.outlook import Outlook
from antiphon_server.advise.retention import Option
from antiphon_server.advise.sessions import active_seconds
from antiphon_server.advise.turn import Turn

BUSY = 0.7
"""Of its time that a prefill engine should be computing at most: beyond it, waiting grows fast."""
FILLED = 0.9
"""Of its KV that a decode engine fills."""
CONVERSATIONS = 100


@dataclass(frozen=True, slots=True)
class Fleet:
    """For 100 active conversations. ``prefill_off``: prefill engines without reuse, and
    ``cold``, ``warm``: with it, if prefill's cache is cold and if it is warm. ``decode_off``, ``decode_on``:
    decode engines, by their KV alone; None: capacity unknown. ``appending``: seconds that appends take of all
    decode engines, each second."""

    prefill_off_cold: float
    prefill_off_warm: float
    prefill_on_cold: float
    prefill_on_warm: float
    decode_off: float | None
    decode_on: float | None
    appending: float


def fleet(
    turns: Sequence[Turn],
    cold: Sequence[Outlook],
    warm: Sequence[Outlook],
    option: Option,
    capacity: int | None,
) -> Fleet | None:
    """``option``: how long is kept. None where the log does not tell times."""
    seconds = active_seconds(turns)
    if not seconds or not any(turn.gap is not None for turn in turns):
        return None
    flight = sum((turn.seconds or 0.0) * turn.total for turn in turns)

    def prefill(work: float) -> float:
        return CONVERSATIONS * work / seconds / BUSY

    def decode(tokens: float) -> float | None:
        return CONVERSATIONS * tokens / (capacity * FILLED) if capacity else None

    return Fleet(
        prefill(sum(o.work_off for o in cold)),
        prefill(sum(o.work_off for o in warm)),
        prefill(sum(o.work_on for o in cold)),
        prefill(sum(o.work_on for o in warm)),
        decode(flight / seconds),
        decode(flight / seconds + option.pinned),
        CONVERSATIONS * sum(o.burden for o in cold) / seconds,
    )
