"""Checks of this machine and of a running fleet.

They are made by ``machine.examine(environ) -> Examination`` and ``fleet.examine(FleetTarget) -> Examination``.
"""

from __future__ import annotations

from antiphon_server.doctor.finding import Check

MACHINE: tuple[Check, ...] = ()
FLEET: tuple[Check, ...] = ()
