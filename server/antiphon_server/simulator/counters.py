"""What an engine did since it was made, as vLLM counts it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Prompt tokens by where their KV came from, and transfers.

    ``queries``: prompt tokens looked up elsewhere, the base of the external hit rate. ``declined``: pulls not
    tried because the handle had expired. ``aborted``: requests whose client left; ``aborted_pulls``: those
    that were pulling then, which can kill a real engine.
    """

    local: int = 0
    pulled: int = 0
    computed: int = 0
    queries: int = 0
    transfers: int = 0
    transferred_bytes: int = 0
    failed_transfers: int = 0
    declined: int = 0
    late_notifications: int = 0
    aborted: int = 0
    aborted_pulls: int = 0

    def prefilled(self, *, local: int, pulled: int, computed: int, asked: bool) -> None:
        """Count one prompt."""
        self.local += local
        self.pulled += pulled
        self.computed += computed
        self.queries += pulled + computed if asked else 0

    def transferred(self, size: int) -> None:
        """Count one transfer of ``size`` bytes."""
        self.transfers += 1
        self.transferred_bytes += size
