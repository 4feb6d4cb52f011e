"""A user's engines as the router's own planning sees them."""

from __future__ import annotations

from antiphon_server.advise.hardware import Hardware
from antiphon_server.router.plan.rates import Rates, Work


class KnownRates(Rates):
    """Rates that are known beforehand, of every engine alike. ``local``: share of what decode holds that
    prefill finds in its own cache."""

    def __init__(self, hardware: Hardware) -> None:
        super().__init__(clock=lambda: 0.0)
        self._hardware = hardware
        self.local = 0.0

    def prefill(self, worker: str, work: Work) -> float | None:
        return self._hardware.prefill(work.new, work.context) + self._hardware.pulling(work.pulled)

    def handed_over(self, worker: str, work: Work) -> float | None:
        return self._hardware.handing_over(work.pulled)

    def append(self, worker: str, work: Work) -> float | None:
        return self._hardware.prefill(work.new, work.context)

    def burden(self, worker: str, work: Work) -> float | None:
        return self._hardware.computing(work.new, work.context)

    def local_share(self, worker: str, *, same: bool | None) -> float:
        return self.local
