"""Checks of what manifests and command lines declare."""

from __future__ import annotations

from antiphon_server.doctor.finding import Check

DECLARED: tuple[Check, ...] = ()
