"""What options' numbers must be beyond what typer checks, whose ranges let NaN in. For ``callback=``."""

from __future__ import annotations

import math

import typer


def finite(value: float | None) -> float | None:
    """Neither NaN nor infinite."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no finite number: write it like 1.5")
    return value


def positive(value: float | None) -> float | None:
    """Finite, and above 0."""
    if finite(value) is not None and value is not None and value <= 0:
        raise typer.BadParameter(f"{value:g} is not above 0: write it like 1.5")
    return value


def share(value: float | None) -> float | None:
    """Above 0, and at most 1."""
    if positive(value) is not None and value is not None and value > 1:
        raise typer.BadParameter(f"{value:g} is no share: it is above 0 and at most 1, like 0.5")
    return value
