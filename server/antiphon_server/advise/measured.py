"""How fast a user's own engines are, from a sweep of them."""

from __future__ import annotations

from pathlib import Path

from antiphon_server.advise.fitted import FitError, Fitted, Leg, fit
from antiphon_server.bench.sweep.files import SweepError, read


def from_sweep(path: Path) -> Fitted:
    """From the JSON of ``antiphon bench sweep``.

    Raises:
        FitError: it cannot be read, or has too few turns.
    """
    try:
        turns = read(path).turns
    except SweepError as error:
        raise FitError(f"--fit {error}") from error
    legs = [
        Leg(round(t.prefill.computed), t.timed.prompt_tokens, round(t.prefill.pulled), t.prefill.busy)
        for t in turns
        if t.prefill.busy > 0 and t.prefill.computed > 0
    ]
    pulled = sum(turn.prefill.pulled for turn in turns)
    received = sum(turn.prefill.received for turn in turns)
    return fit(legs, "the sweep", round(received / pulled) if pulled and received else None)
