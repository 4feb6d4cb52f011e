"""The router's double for these tests."""

from __future__ import annotations

from doubles.fixtures import bare_environment, double, patient_ending

__all__ = ["bare_environment", "double", "patient_ending"]
