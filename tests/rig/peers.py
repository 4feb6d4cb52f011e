"""Other people's programs, in an environment of their own: ``requirements/peers.txt`` says which."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

LOOPBACK_ONLY = Path(__file__).parent / "loopback_only"
PATIENCE = 180.0
"""Seconds that one program may take."""


def environment() -> Path:
    """The environment's folder: ``ANTIPHON_PEERS`` names it, else it stands beside that of this interpreter.

    Skips the test where there is none and none was named.
    """
    named = os.environ.get("ANTIPHON_PEERS")
    folder = Path(named) if named else Path(f"{sys.prefix}-peers")
    if (folder / "bin" / "aiperf").is_file():
        return folder.absolute()
    remedy = (
        "`make test` makes it, or: python -m venv FOLDER && FOLDER/bin/pip install -r requirements/peers.txt"
    )
    if named:
        pytest.fail(f"ANTIPHON_PEERS={named} holds no bin/aiperf; {remedy}")
    pytest.skip(f"no environment of other benchmark tools in {folder}; {remedy}")


def output_of_peer(*command: str, folder: Path) -> str:
    """What a program prints, run in ``folder`` as its home, with this machine alone in reach.

    Raises:
        AssertionError: it failed, did not end, or tried to reach another machine.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environ = {**inherited, "HOME": str(folder), "PYTHONPATH": str(LOOPBACK_ONLY)}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"{command[0]} did not end within {PATIENCE:.0f} s:\n{output}")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    assert "tried to reach" not in output, output
    return output
