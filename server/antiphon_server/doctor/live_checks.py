"""Checks of this machine and of a running fleet."""

from __future__ import annotations

from antiphon_server.doctor.finding import Check

MACHINE: tuple[Check, ...] = ()
FLEET: tuple[Check, ...] = ()
