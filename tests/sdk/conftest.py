"""The kit's router for these tests."""

from __future__ import annotations

from doubles.fixtures import antiphon_router, bare_environment, patient_ending

__all__ = ["antiphon_router", "bare_environment", "patient_ending"]
