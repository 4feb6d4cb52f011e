"""Faults of a configuration in words: which key, what it says, who said it, what is wrong, what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic_core import ErrorDetails

from antiphon_server.router.config.options import Option, option
from antiphon_server.router.config.redact import MASK, masked, redacted
from antiphon_server.router.config.settings import RouterSettings

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


@dataclass(frozen=True, slots=True)
class Fault:
    """``value``: as shown, None where there is none to show. ``origin``: the flag, variable or file."""

    key: str
    value: str | None
    origin: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        value = f" = {self.value}" if self.value is not None else ""
        origin = f" ({self.origin})" if self.origin else ""
        problem = masked(f"{self.key}{value}{origin}: {self.problem}")
        return f"{problem}. Remedy: {self.remedy}." if self.remedy else f"{problem}."


def shown(value: Any) -> str:
    """A value as a fault names it."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, str | Path):
        return redacted(str(value))
    if isinstance(value, list | tuple):
        return repr([redacted(item) if isinstance(item, str) else item for item in value])
    return masked(repr(value))


def of_pydantic(error: ErrorDetails, origin: str) -> Fault:
    """What pydantic found wrong with a setting, in our words."""
    name = str(error["loc"][0])
    known = option(name)
    place = "".join(f"[{part}]" for part in error["loc"][1:])
    value = MASK if known.secret else shown(error["input"])
    if error["type"] == "value_error":
        return Fault(name + place, value, origin, _said(error), "")
    problem = re.sub(r"^(Input|Value) should be ", "must be ", error["msg"]).replace("Input should", "must")
    return Fault(name + place, value, origin, problem, _remedy(known, error, origin))


def _said(error: ErrorDetails) -> str:
    said = error["msg"].removeprefix("Value error, ").rstrip(".")
    # What it quotes may be a piece of the password, such as what is left of it in the port's place.
    return _QUOTED.sub(repr(MASK), said) if MASK in shown(error["input"]) else said


def _remedy(known: Option, error: ErrorDetails, origin: str) -> str:
    if str(error["input"]).startswith("tcp://") and origin.isupper():
        # Kubernetes gives every pod ANTIPHON_PORT=tcp://... when a service is called "antiphon".
        return (
            "Kubernetes sets it for a service of that name: set enableServiceLinks: false, or give the flag"
        )
    if known.choices:
        return f"give one of {', '.join(known.choices)}"
    limits = {
        "greater_than": "above {gt}",
        "greater_than_equal": "of {ge} or more",
        "less_than": "below {lt}",
        "less_than_equal": "of {le} or less",
    }
    if error["type"] in limits:
        return f"give a {known.kind} {limits[error['type']].format_map(error.get('ctx', {}))}"
    words = {"switch": "true or false", "number": "a number", "count": "a whole number", "path": "a path"}
    kind = words.get(known.kind, "a text")
    default = f", e.g. {known.default}, the default" if known.default is not None else ""
    return f"give {'a list' if known.many else kind}{default}"


def plain(settings: RouterSettings) -> dict[str, Any]:
    """Every setting as JSON would hold it; secrets and passwords masked."""

    def shape(value: Any) -> Any:
        if isinstance(value, SecretStr):
            return MASK
        if isinstance(value, dict):
            return {key: shape(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [shape(item) for item in value]
        return value if value is None or isinstance(value, bool | int | float) else redacted(str(value))

    return {name: shape(value) for name, value in settings}
