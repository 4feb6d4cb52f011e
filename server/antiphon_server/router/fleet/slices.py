"""What Kubernetes' EndpointSlices say about engines, as pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Slice = Mapping[str, Any]
"""An EndpointSlice of discovery.k8s.io/v1, as JSON."""


@dataclass(frozen=True, slots=True)
class Change:
    """What to do to the fleet. An engine that was never seen ready is not added."""

    do: Literal["add", "drain", "undrain", "remove"]
    url: str


def engines_of(slices: Iterable[Slice], port: str | None, scheme: str) -> dict[str, bool]:
    """URLs of the engines, and whether each may take new turns: ready and not terminating.

    An address may be in two slices for a moment, when Kubernetes moves it: one that says ready is enough.
    ``port``: name or number; None: the slice's only port.
    """
    found: dict[str, bool] = {}
    for item in slices:
        number = _port(item, port)
        if number is None:
            continue
        for endpoint in item.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            # Unknown is to be read as ready, says Kubernetes' API.
            ready = conditions.get("ready") is not False and not conditions.get("terminating")
            for address in endpoint.get("addresses") or ():
                host = f"[{address}]" if item.get("addressType") == "IPv6" else address
                url = f"{scheme}://{host}:{number}"
                found[url] = found.get(url, False) or ready
    return found


def _port(item: Slice, wanted: str | None) -> int | None:
    ports = [entry for entry in item.get("ports") or () if entry.get("port")]
    if wanted is None:
        return ports[0]["port"] if len(ports) == 1 else None
    if wanted.isdigit():
        return int(wanted)
    return next((entry["port"] for entry in ports if entry.get("name") == wanted), None)


def changes(before: Mapping[str, bool], after: Mapping[str, bool]) -> list[Change]:
    """What leads from one state of the engines to the next; newcomers first, so that capacity never dips."""
    found: list[Change] = []
    for url, ready in after.items():
        if url not in before:
            found += [Change("add", url)] if ready else []
        elif ready != before[url]:
            found.append(Change("undrain" if ready else "drain", url))
    found += [Change("remove", url) for url in before if url not in after]
    return found


def known(before: Mapping[str, bool], after: Mapping[str, bool]) -> dict[str, bool]:
    """The next ``before``: without engines that were never added."""
    return {url: ready for url, ready in after.items() if ready or url in before}
