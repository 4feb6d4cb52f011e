"""Commands of ours as a terminal starts them."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path


def foreground(
    *arguments: str, output: Path, environ: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """``antiphon`` with these arguments, which Ctrl-C ends even where the tests run in a shell's background:
    they inherit an ignored SIGINT, and so would it. ``output``: file of what it says."""
    with output.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "antiphon_server.cli", *arguments],
            env=environ,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
