"""The folder that holds generated and converted models, shared by all processes of a user.

``ANTIPHON_CACHE`` names it; else ``antiphon`` under ``XDG_CACHE_HOME`` or ``~/.cache``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The cache's folder. It may not exist yet."""
    if own := environ.get("ANTIPHON_CACHE"):
        return Path(own).expanduser()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "antiphon"


def build_once(target: Path, build: Callable[[Path], None], *, valid: Callable[[Path], bool]) -> Path:
    """``target``, built by ``build`` unless it is there and ``valid``.

    ``build`` fills an empty folder beside the target, which then takes the target's name: a reader never
    sees half a model, and of several processes one builds while the others wait.
    """
    if valid(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f".{target.name}.lock")):
        if valid(target):
            return target
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            build(scratch)
            scratch.chmod(0o755)
            if target.exists():
                shutil.rmtree(target)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
