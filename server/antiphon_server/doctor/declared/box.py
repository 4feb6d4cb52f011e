"""What surrounds a declared process: a host itself, or a container with what it was granted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

UNLIMITED = "unlimited"
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

Manager = Literal["shell", "systemd", "compose", "kubernetes"]


@dataclass(frozen=True, slots=True)
class Box:
    """``network``: processes with the same one share addresses and ports. ``node``: those with the same one
    share a machine, None: unknown. ``memlock``: bytes, :data:`UNLIMITED`, or None where nothing is said.
    ``shm``: bytes of /dev/shm, None: the container engine's own 64 MiB. ``efa``: EFA interfaces granted.
    ``grace``: seconds between SIGTERM and the kill. ``published``: outside addresses its ports answer on.
    ``replicas``: how many of it there may be."""

    manager: Manager
    network: str
    node: str | None = None
    image: str | None = None
    versions: tuple[tuple[str, str], ...] = ()
    host_network: bool = False
    privileged: bool = False
    capabilities: frozenset[str] = field(default_factory=frozenset)
    memlock: int | str | None = None
    shm: int | None = None
    efa: int = 0
    huge_pages: bool = False
    grace: float | None = None
    published: tuple[str, ...] = ()
    fenced: bool = False
    replicas: int = 1

    @property
    def container(self) -> bool:
        """It is one, so what the host has is not there unless granted."""
        return self.manager in ("compose", "kubernetes")


def size(text: object) -> int | None:
    """Bytes of ``4g``, ``4gb``, ``64M``, ``8Gi`` or a number; None where it is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([bkmgt]?)(i?)b?", str(text).strip().lower())
    if found is None:
        return None
    return int(float(found[1]) * _UNITS[found[2]])


def seconds(text: object) -> float | None:
    """Seconds of ``90``, ``90s``, ``1m30s``, ``1min 30s`` or ``infinity``; None where it is no duration."""
    plain = str(text).strip().lower()
    if plain in ("infinity", "infinite"):
        return float("inf")
    if re.fullmatch(r"\d+(\.\d+)?", plain):
        return float(plain)
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|m|min|h)(?=\s|\d|$)", plain)
    if not parts or re.sub(r"[\d.\sa-z]", "", plain):
        return None
    scale = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
    return sum(float(number) * scale[unit] for number, unit in parts)
