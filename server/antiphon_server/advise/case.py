"""What a verdict is found from, and where its limits are. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_server.advise.funnel import Funnel
from antiphon_server.advise.interconnect import Interconnect
from antiphon_server.advise.latency import Latency
from antiphon_server.advise.repetition import Repetition
from antiphon_server.advise.retention import Retention

LEAST_GAIN, CLEAR_GAIN = 0.10, 0.25
"""Of the mean expected TTFT: below the first it does not pay, from the second on it clearly does."""
LEAST_SAVED, CLEAR_SAVED = 0.02, 0.1
"""Seconds a turn, likewise."""
FEW_RETURNS, MANY_RETURNS, MANY_CONVERSATIONS = 3, 100, 10
"""Turns that return: with fewer than the first nothing can be said; with fewer than the others, no more than
"with care"."""
LONG_ENOUGH = 0.5
"""Of the tokens that repeat, those that must be in prefixes worth fetching."""
KNOWN = 0.5
"""Of the tokens that repeat, those whose gap must be known; and of later turns' tokens, those of which it is
to be known what repeats."""
MOSTLY = 0.9
"""Of later turns' prompt tokens, those of which the log must tell what repeats, and of what repeats, those
whose gap it must tell, not to ask for care."""
GONE, REWRITTEN = 0.2, 0.1
"""Of the tokens that repeat, those gone; and of what decode held, what is lost to changes of the history:
from these on with care."""
ROOM = 0.5
"""Of what active conversations would pin, what decode must be able to keep."""
GUESSED = 0.1
"""Of all turns, those that name no conversation, put together by what they repeat: from then on with care."""
LOCAL = 0.9
"""Of what prefill's own cache could have, what it must have to be taken for warm."""
ANONYMOUS = 0.5
"""Of all turns, those without an id of a conversation, from which on there is nothing to be said."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged. ``cold``, ``warm``: expected TTFT by the state of prefill's cache; ``hoped``: with a
    cold one, if every turn came back in time. ``cached``: share of what prefill's cache could have that it
    had, None: not logged. ``anonymous``: share of turns that the router saw without an id. ``guessed``: of
    those whose log names no conversation. ``keep``: seconds. ``room``: conversations, as long as they get,
    that a prefill engine's cache holds. ``fits``: of what active conversations pin, what decode may keep,
    None: not known, or already in ``retention``."""

    repetition: Repetition
    interconnect: Interconnect
    retention: Retention
    cold: Latency
    warm: Latency
    hoped: Latency
    funnel: Funnel
    hoped_funnel: Funnel
    keep: float
    cached: float | None = None
    anonymous: float = 0.0
    guessed: float = 0.0
    reuses: bool = True
    estimated: bool = False
    room: float | None = None
    fits: float | None = None

    @property
    def gain(self) -> float:
        """Of the mean TTFT: between a warm and a cold cache as logged, else with a cold one."""
        return self._between(self.cold.gain, self.warm.gain)

    @property
    def saved(self) -> float:
        """Seconds a turn, likewise."""
        return self._between(self.cold.saved, self.warm.saved)

    @property
    def pays(self) -> bool:
        """Enough is saved."""
        return _enough(self.gain, self.saved)

    @property
    def pays_cold(self) -> bool:
        """Enough would be saved if prefill's own cache had nothing."""
        return _enough(self.cold.gain, self.cold.saved)

    @property
    def hinges(self) -> bool:
        """It pays, but too little is left where prefill's own cache is warm, and the log does not tell."""
        return self.pays and self.cached is None and not _enough(self.warm.gain, self.warm.saved)

    @property
    def could_pay(self) -> bool:
        """Enough would be saved if every turn came back in time."""
        return _enough(self.hoped.gain, self.hoped.saved)

    @property
    def too_short(self) -> bool:
        """Appends save a hop even there, but what repeats is computed as fast as it is found. A slow
        interconnect is another matter: appends move nothing."""
        return not self.interconnect.slow and self.interconnect.above < LONG_ENOUGH

    @property
    def clear(self) -> bool:
        """Much is saved."""
        return self.gain >= CLEAR_GAIN and self.saved >= CLEAR_SAVED

    def _between(self, cold: float, warm: float) -> float:
        return cold if self.cached is None else cold + self.cached * (warm - cold)


def _enough(gain: float, saved: float) -> bool:
    """Of the mean TTFT, and seconds a turn, to pay."""
    return gain >= LEAST_GAIN and saved >= LEAST_SAVED
