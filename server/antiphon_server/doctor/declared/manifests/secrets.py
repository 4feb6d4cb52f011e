"""Secrets that stand readable in a file."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from antiphon_server.doctor.declared.declared import HIDDEN, Plain
from antiphon_server.router.config.redact import redacted

_NAME = re.compile(
    r"(?i)(^|_)(API_?KEYS?|ENGINE_KEY|ADMIN_KEY|METRICS_KEY|SECRET|PASSWORD|PASSWD|TOKEN|HF_TOKEN)$|_KEY$"
)
_FILLED_IN = re.compile(r"[:=]\$")
"""A password of a URL that comes from elsewhere."""


def plain(subject: str, written: Mapping[str, object]) -> tuple[Plain, ...]:
    """Names of ``written`` whose values are secrets given as they are. A value that is filled in from
    elsewhere (``${NAME}``, a reference) is none; nor is an empty one."""
    return tuple(
        Plain(subject, name)
        for name, value in written.items()
        if isinstance(value, str) and value and not value.startswith(("$", HIDDEN)) and _secret(name, value)
    )


def exposed(subject: str, file: Path, written: Mapping[str, object]) -> tuple[Plain, ...]:
    """The same of an environment file, which is the place for secrets unless every user may read it."""
    found = plain(subject, written)
    if not found or not file.stat().st_mode & stat.S_IROTH:
        return ()
    return tuple(replace(each, file=file) for each in found)


def _secret(name: str, value: str) -> bool:
    if redacted(value) != value and not _FILLED_IN.search(value):
        return True
    # GF_..., names of files, and words such as "true" are no secrets of ours.
    return (
        bool(_NAME.search(name))
        and not name.endswith("_FILE")
        and not name.startswith("GF_")
        and len(value) > 3
    )
