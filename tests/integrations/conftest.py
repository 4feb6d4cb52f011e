"""The router's double for these tests, and the guard that keeps them on this machine."""

from __future__ import annotations

from doubles.fixtures import bare_environment, double, patient_ending
from doubles.loopback import escapes, loopback_only

__all__ = ["bare_environment", "double", "escapes", "loopback_only", "patient_ending"]
