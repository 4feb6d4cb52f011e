"""An engine that is process 1 of its container ends when it is asked, and collects what it leaves behind."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

PATIENCE_S = 60.0
SUPERVISE = """
import ctypes, os, sys
from antiphon_server.stack.init import supervise
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # adopts orphans, as process 1 does
sys.exit(supervise(sys.argv[1:], {**os.environ, "GIVEN": "yes"}))
"""
ORPHAN = """
import os, sys, time
reading, writing = os.pipe()
if os.fork() == 0:
    pid = os.fork()
    if pid:
        os.write(writing, b"%d" % pid)
    os._exit(0)
os.wait()
path = "/proc/" + os.read(reading, 20).decode()
end = time.monotonic() + 30
while os.path.exists(path) and time.monotonic() < end:
    time.sleep(0.02)
sys.exit(1 if os.path.exists(path) else 3)
"""


def await_(done: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def supervised(output: Path, *argv: str) -> subprocess.Popen[bytes]:
    with output.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, *argv], stdout=out, stderr=subprocess.STDOUT
        )


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; raise SystemExit(os.environ['GIVEN'] != 'yes')", 0),
        (ORPHAN, 3),
    ],
)
def test_its_exit_code_is_the_commands_and_orphans_are_collected(
    tmp_path: Path, code: str, ended: int
) -> None:
    assert supervised(tmp_path / "output", sys.executable, "-c", code).wait(PATIENCE_S) == ended


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    assert supervised(tmp_path / "output", "/no/such/program").wait(PATIENCE_S) == 127
    assert "cannot start /no/such/program: No such file" in (tmp_path / "output").read_text()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command(tmp_path: Path, signum: signal.Signals) -> None:
    code = f"""
import signal, sys, time
signal.signal({int(signum)}, lambda *_: sys.exit(5))
print("ready", flush=True)
time.sleep(600)
"""
    output = tmp_path / "output"
    process = supervised(output, sys.executable, "-c", code)
    await_(functools.partial(has, output, "ready"))
    process.send_signal(signum)
    assert process.wait(PATIENCE_S) == 5


def has(output: Path, word: str) -> bool:
    return word in output.read_text()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="process namespaces need root and unshare"
)
def test_an_engine_that_still_loads_ends_when_asked_as_process_1(
    fake_vllm: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    server = Path(fake_vllm["PYTHONPATH"]) / "vllm/entrypoints/openai/api_server.py"
    server.write_text("import os, time\nprint('loading as', os.getpid(), flush=True)\ntime.sleep(600)\n")
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command += [sys.executable, "-m", "antiphon_server.cli", "engine", "decode", "--model", "tiny"]
    command += ["--port", "18200", "--side-channel-port", "15600"]
    output = tmp_path / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(command, env=fake_vllm, stdout=out, stderr=subprocess.STDOUT)
    try:
        await_(lambda: process.poll() is not None or has(output, "loading as"))
        assert process.poll() is None, output.read_text()
        (first,) = psutil.Process(process.pid).children()
        first.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
