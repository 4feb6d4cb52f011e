"""One supervised process of the stack: its guard, its log, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from antiphon_server.stack.command import ProcessSpec

GUARD = Path(__file__).with_name("guard.py")
KILL_MARGIN_S = 10.0


class Process:
    """A running :class:`ProcessSpec`. It dies with this process, however this one ends (see ``guard.py``)."""

    def __init__(self, spec: ProcessSpec, *, grace: float, environ: Mapping[str, str] = os.environ) -> None:
        self.spec = spec
        self._grace = grace
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        reading, self._lifeline = os.pipe()
        try:
            with spec.log.open("wb") as log:
                self._guard = subprocess.Popen(
                    [sys.executable, "-S", "-E", str(GUARD), str(reading), str(grace), *spec.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**environ, **spec.env},
                    pass_fds=(reading,),
                    # A session of its own: Ctrl-C at the terminal reaches only the stack.
                    start_new_session=True,
                )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        """Of its guard; what was asked for runs below."""
        return self._guard.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; 128 + signal where one ended it."""
        return self._guard.poll()

    def listens(self) -> bool:
        """Whether this process, and not somebody else's, is at the port of its URL."""
        port = urlsplit(self.spec.url).port
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._guard.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    sockets = process.net_connections("tcp")
                    if any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in sockets):
                        return True
        return False

    def ask_to_stop(self, *, at_once: bool = False) -> None:
        """Begin to stop it: politely first, with all its descendants when the grace is over. Idempotent."""
        lifeline, self._lifeline = self._lifeline, -1
        if at_once:
            self._guard.terminate()
        if lifeline >= 0:
            os.close(lifeline)

    def wait_stopped(self) -> None:
        """Wait until nothing of it runs; call :meth:`ask_to_stop` first."""
        try:
            self._guard.wait(self._grace + KILL_MARGIN_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        finally:
            # Only where the guard itself was killed is anything of its session left.
            for pid in session_members(self._guard.pid):
                _kill(pid)

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(read_tail(self.spec.log).splitlines()[-lines:])


def read_tail(log: Path, size: int = 16384) -> str:
    """The end of a log, at most ``size`` bytes; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def session_members(session: int) -> list[int]:
    """Running processes of a session (Linux: read in /proc)."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(own) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
