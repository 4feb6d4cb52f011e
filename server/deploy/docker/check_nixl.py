"""That an image can transfer KV: ``check_nixl.py [LIBFABRIC]``. Run where it is built, so without devices.

NIXL says nothing when a backend cannot be loaded, and vLLM then moves KV over TCP. Exit code 1 and the reason
where something is missing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from importlib import metadata

from antiphon_server.doctor.machine.rules import LEAST_LIBFABRIC
from antiphon_server.versions import MINIMUM_NIXL, NIXL_PACKAGES, installed, numbers, text

PLUGIN = "libplugin_LIBFABRIC.so"
OF_PLUGIN = ("libfabric.so.1", "libhwloc.so.15")
"""What the plug-in loads and no wheel brings. CUDA's driver comes with the device, at run time."""


def faults(backend: str | None) -> Iterator[str]:
    """What is missing, and the remedy. ``backend``: beside UCX, which every wheel of NIXL's has."""
    found = {name: version for name in NIXL_PACKAGES if (version := installed([name])) is not None}
    if not found:
        yield "nixl is not installed: python3 -m pip install nixl"
    for name, version in found.items():
        if numbers(version) < MINIMUM_NIXL:
            yield f"{name} {version} hangs with LIBFABRIC: install {text(MINIMUM_NIXL)} or later"
    if backend == "LIBFABRIC":
        yield from _libfabric(list(found))


def _libfabric(packages: list[str]) -> Iterator[str]:
    if not any(path.name == PLUGIN for name in packages for path in metadata.files(name) or ()):
        found = ", ".join(packages) or "NIXL"
        yield f"no package of {found} has {PLUGIN}: take NIXL's wheel for x86-64 or aarch64"
    for library in OF_PLUGIN:
        try:
            loaded = ctypes.CDLL(library)
        except OSError as error:
            yield f"{library} cannot be loaded ({error}): install the EFA software and libhwloc15"
            continue
        if library == "libfabric.so.1":
            packed = int(loaded.fi_version())
            version = packed >> 16, packed & 0xFFFF
            if version < LEAST_LIBFABRIC:
                least = text(LEAST_LIBFABRIC)
                yield f"libfabric {text(version)}: {least} or later is needed; install newer EFA software"


if __name__ == "__main__":
    missing = list(faults(sys.argv[1] if len(sys.argv) > 1 else None))
    print("\n".join(missing) or "NIXL can transfer KV", file=sys.stderr if missing else sys.stdout)
    sys.exit(bool(missing))
