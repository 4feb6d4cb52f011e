"""Who looks on at a replay."""

from __future__ import annotations

from antiphon_server.bench.replay.record import Served


class Watcher:
    """Hears what happens. This one does nothing with it."""

    def begin(self, arm: str, conversations: int) -> None:
        """So many conversations begin."""

    def turn(self, served: Served) -> None:
        """A turn is over."""

    def left_out(self, turns: int) -> None:
        """So many turns will not be asked: one before them failed."""
