"""Environment files that systemd and a shell read alike."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_./:,@%+=-]*")
_ESCAPED = re.compile(r'([\\"$`])')


def text_of(variables: Mapping[str, str], heading: str) -> str:
    """One variable a line, in the order given, below a comment."""
    lines = [f"{name}={quoted(value)}" for name, value in variables.items()]
    return "\n".join([f"# {heading}", *lines, ""])


def quoted(value: str) -> str:
    """In double quotes where it needs them."""
    return value if _BARE.fullmatch(value) else '"' + _ESCAPED.sub(r"\\\1", value) + '"'
