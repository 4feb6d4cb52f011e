"""The agent's tools: they really read, search and add up the files of an incident."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

INCIDENT = Path(__file__).with_name("incident")
SERVICES = ("payments", "checkout", "inventory")
MOST_LINES = 7


def error_rate(service: str, minutes: str) -> str:
    """Requests, errors and p95 latency of a service over time, in steps of so many minutes."""
    step = int(minutes)
    sums: dict[str, tuple[int, int, int]] = {}
    for row in _rows("requests.csv"):
        if row["service"] != service:
            continue
        hour, _, minute = row["minute"].partition(":")
        start = f"{hour}:{int(minute) // step * step:02d}"
        requests, errors, p95 = sums.get(start, (0, 0, 0))
        sums[start] = (
            requests + int(row["requests"]),
            errors + int(row["errors"]),
            max(p95, int(row["p95_ms"])),
        )
    lines = [f"{start} {n} {bad} {bad / n:.1%} {p95}" for start, (n, bad, p95) in sums.items()]
    return "\n".join(["time requests errors rate p95_ms", *lines])


def search_log(service: str, level: str) -> str:
    """Newest log lines of a service at a level, and how many there are."""
    lines = _text(f"{service}.log").splitlines()
    found = [line for line in lines if re.search(rf"\b{level}\b", line)]
    first = f", first at {found[0].split()[0]}" if found else ""
    head = f"{len(found)} of {len(lines)} lines are {level}{first}; newest:"
    return "\n".join([head, *found[-MOST_LINES:]])


def recent_changes(service: str) -> str:
    """Releases and configuration changes, newest first; those of a service are marked."""
    lines = [
        f"{'>' if row['service'] == service else ' '} {row['time']} {row['service']}: "
        f"{row['change']} ({row['by']})"
        for row in reversed(_rows("changes.csv"))
    ]
    return "\n".join(lines)


def read_config(service: str) -> str:
    """Production configuration of a service."""
    return _text(f"{service}.toml").rstrip()


def compare_hour(service: str, measure: str) -> str:
    """A measure of a service before and after 14:02, minute by minute around it, and on average."""
    rows = [row for row in _rows("requests.csv") if row["service"] == service]
    before = [int(row[measure]) for row in rows if row["minute"] < "14:02"]
    after = [int(row[measure]) for row in rows if row["minute"] >= "14:02"]
    around = " ".join(
        f"{row['minute']}={row[measure]}" for row in rows if "13:55" <= row["minute"] <= "14:11"
    )
    means = f"mean before {sum(before) / len(before):.1f}, after {sum(after) / len(after):.1f}"
    return f"{service} {measure}: {means}\n{around}\nlargest before {max(before)}, after {max(after)}"


TOOLS: Mapping[str, Callable[..., str]] = {
    tool.__name__: tool for tool in (error_rate, search_log, recent_changes, read_config, compare_hour)
}
_CHOICES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "error_rate": {"service": SERVICES, "minutes": ("4", "3", "2")},
    "search_log": {"service": SERVICES, "level": ("ERROR", "WARN")},
    "recent_changes": {"service": SERVICES},
    "read_config": {"service": SERVICES},
    "compare_hour": {"service": SERVICES, "measure": ("errors", "p95_ms")},
}


def schemas() -> list[dict[str, Any]]:
    """The tools as the model is told of them. Every argument is one of few: even a weak model calls well."""
    return [_schema(name, choices) for name, choices in _CHOICES.items()]


def call(name: str, arguments: str) -> str:
    """Run a tool on arguments in JSON. What is wrong with them is the result, as in any agent."""
    try:
        given = json.loads(arguments)
        wrong = [key for key, values in _CHOICES[name].items() if given.get(key) not in values]
    except (ValueError, AttributeError) as error:
        return f"error: arguments are not a JSON object: {error}"
    if wrong or given.keys() - _CHOICES[name].keys():
        return f"error: {name} takes {', '.join(_CHOICES[name])}, each one of its enum's values"
    return TOOLS[name](**given)


def _schema(name: str, choices: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    properties = {key: {"type": "string", "enum": list(values)} for key, values in choices.items()}
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(choices),
        "additionalProperties": False,
    }
    function = {
        "name": name,
        "description": TOOLS[name].__doc__,
        "parameters": parameters,
        "strict": True,
    }
    return {"type": "function", "function": function}


def _text(name: str) -> str:
    return (INCIDENT / name).read_text()


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(_text(name).splitlines()))
