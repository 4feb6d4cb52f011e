"""The kit's router for these tests, and the guard that keeps them on this machine."""

from __future__ import annotations

from doubles.fixtures import antiphon_router, bare_environment, own_clients, patient_ending
from doubles.loopback import escapes, loopback_only

__all__ = ["antiphon_router", "bare_environment", "escapes", "loopback_only", "own_clients", "patient_ending"]
