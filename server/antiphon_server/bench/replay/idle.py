"""Arms that were to reuse and never did. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from antiphon_server.bench.replay.record import Idle, Served

_COLD = "cold"
"""A path, and the name of an arm that is to take no other."""
_CHOSEN = "slower"
"""The reason of a router that expects plain P/D to be faster."""


def idle(stamping: Sequence[str], turns: Sequence[Served]) -> Iterator[Idle]:
    """Of the arms whose calls carry an id, those without one later turn that reused anything. A server that
    names no path is not judged, nor an arm without later turns, nor one that is named cold."""
    for arm in (arm for arm in stamping if arm != _COLD):
        own = [
            turn
            for turn in turns
            if turn.arm == arm and turn.turn > 1 and turn.error is None and turn.path != "unknown"
        ]
        if own and not any(turn.path != _COLD and turn.matched for turn in own):
            outcomes = dict(Counter(f"{turn.path} ({turn.reason})" for turn in own).most_common())
            yield Idle(arm, len(own), outcomes, all(turn.reason == _CHOSEN for turn in own))
