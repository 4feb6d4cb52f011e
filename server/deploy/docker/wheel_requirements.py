"""Print what a wheel asks for, without some distributions: ``wheel_requirements.py WHEEL [NAME ...]``.

Lines for pip; what only an extra asks for is left out. The standard library is enough.
"""

from __future__ import annotations

import re
import sys
import zipfile
from email.parser import Parser
from pathlib import Path


def requirements(wheel: Path, without: set[str]) -> list[str]:
    """As in its metadata. ``without``: names as ``normal`` writes them."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        found = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    return [line for line in found if "extra ==" not in line and _name(line) not in without]


def normal(name: str) -> str:
    """``Foo_Bar`` -> ``foo-bar``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _name(requirement: str) -> str:
    return normal(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), {normal(name) for name in sys.argv[2:]})))
