"""``compose.yaml`` as Docker Compose sees it: variables put in, merge keys resolved, profiles chosen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[3] / "server" / "deploy" / "compose"
COMPOSE = FOLDER / "compose.yaml"
ENV = FOLDER / ".env"
PROFILES = ("cpu", "gpu", "efa", "observability", "redis")

Service = dict[str, Any]

_VARIABLE = re.compile(r"\$\$|\$\{([A-Z][A-Z0-9_]*):-([^{}]*)\}")


def knobs() -> dict[str, str]:
    """What ``.env`` sets."""
    lines = [line for line in ENV.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def used() -> list[tuple[str, str]]:
    """The variables of ``compose.yaml`` with their defaults, as often as they stand there."""
    return [(found[1], found[2]) for found in _VARIABLE.finditer(_code()) if found[1]]


def odd() -> list[str]:
    """Uses of variables in any other form."""
    return re.findall(r"\$\S*", _VARIABLE.sub("", _code()))


def project(**given: str) -> dict[str, Any]:
    """All of it, with ``.env`` and on top of it what a shell has."""
    values = {**knobs(), **given}

    def put_in(found: re.Match[str]) -> str:
        return (values.get(found[1]) or found[2]) if found[1] else "$"

    def rendered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rendered(one) for key, one in value.items()}
        if isinstance(value, list):
            return [rendered(one) for one in value]
        return _VARIABLE.sub(put_in, value) if isinstance(value, str) else value

    whole: dict[str, Any] = rendered(yaml.load(COMPOSE.read_text(), Loader=_Loader))
    return {key: value for key, value in whole.items() if not key.startswith("x-")}


def services(*profiles: str, **given: str) -> dict[str, Service]:
    """Those that run with the profiles."""
    every: dict[str, Service] = project(**given)["services"]
    return {
        name: one
        for name, one in every.items()
        if not one.get("profiles") or set(one["profiles"]) & set(profiles)
    }


class _Loader(yaml.SafeLoader):
    """Refuses mappings merged together that have a key in common: readers differ in which of them wins."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge" and isinstance(value, yaml.SequenceNode):
                keys = [one.value for part in value.value for one, _ in part.value if one.value != "<<"]
                twice = sorted({key for key in keys if keys.count(key) > 1})
                assert not twice, f"{twice} in two of the mappings merged{node.start_mark}"
        super().flatten_mapping(node)


def _code() -> str:
    """Without comments."""
    return "\n".join(line for line in COMPOSE.read_text().splitlines() if not line.lstrip().startswith("#"))
