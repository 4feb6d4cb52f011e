"""Versions: the least that exact reuse needs, what is installed here, and how a version reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import metadata

MINIMUM_VLLM = (0, 31)
MINIMUM_NIXL = (1, 3, 2)
"""Earlier NIXL hangs with LIBFABRIC."""
NIXL_PACKAGES = ("nixl", "nixl-cu13", "nixl-cu12")
"""Distributions of NIXL: for all accelerators, and for one."""

_RELEASE = re.compile(r"v?(\d+(?:\.\d+){0,2})")


def numbers(version: str) -> tuple[int, ...]:
    """Up to three, whatever follows them: ``"1.22.0amzn4.0"`` and ``"v1.22.0rc1"`` are ``(1, 22, 0)``. Empty
    where the text is no version."""
    found = _RELEASE.match(version)
    return tuple(map(int, found[1].split("."))) if found else ()


def text(version: Iterable[int]) -> str:
    """``(1, 3, 2)`` as ``"1.3.2"``."""
    return ".".join(map(str, version))


def installed(names: Sequence[str]) -> str | None:
    """Version of the first of these distributions that is here."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
