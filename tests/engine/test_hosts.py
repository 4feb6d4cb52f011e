"""Prefill and decode on hosts of their own, started one by one as containers and units start them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import antiphon
import antiphon_openai
from rig import counters, fleet, hosts
from rig.answers import assert_same, chat, client_of
from rig.fleet import KV_BYTES_PER_TOKEN
from rig.hosts import Host
from rig.scenes import FIRST, NEXT

pytestmark = pytest.mark.engine

START_S = 300.0
STOP_S = 60.0
ROUTES = {"prefill": ("--address", "auto", "--host", "0.0.0.0"), "decode": ("--address", "{address}")}
"""Both ways to say where an engine is; there is no default route to find the first by."""


@contextlib.contextmanager
def engine(host: Host, role: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "antiphon_server.cli", "engine", role, "--model", "tiny"]
    command += [word.format(address=host.address) for word in ROUTES[role]]
    command += ["--no-prefill-cache", "--threshold", "1", "--threads", "1", "--max-model-len", "8192"]
    with log.open("wb") as out:
        process = host.popen(command, out)
    try:
        yield process
    finally:
        for pid in (process.pid, *host.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def await_up(host: Host, process: subprocess.Popen[bytes], port: int, log: Path) -> str:
    """Its URL, once it answers."""
    url = f"http://{host.address}:{port}"
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(httpx.TransportError), host.inside():
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return url
        time.sleep(0.5)
    raise AssertionError(f"{url} does not start: {log.read_text()[-2000:]}")


def test_a_turn_pulls_from_decode_on_another_host_and_both_engines_end_when_asked(tmp_path: Path) -> None:
    if reason := hosts.missing():
        pytest.skip(reason)
    logs = {role: tmp_path / f"{role}.log" for role in ROUTES}
    with contextlib.ExitStack() as ends:
        there, elsewhere = ends.enter_context(hosts.two_hosts())
        engines = [
            (host, port, logs[role], ends.enter_context(engine(host, role, logs[role])))
            for host, role, port in ((there, "prefill", 8100), (elsewhere, "decode", 8200))
        ]
        prefill, decode = (await_up(host, process, port, log) for host, port, log, process in engines)
        with there.inside(), fleet.router(prefill, decode, tmp_path / "router.log") as router:
            with client_of(router) as client, antiphon.conversation():
                agent = antiphon_openai.wrap(client)
                first = chat(agent, FIRST, salt="mine", tokens=80)
                before = counters.read(prefill)
                messages = [*FIRST, first.message, NEXT]
                second = chat(agent, messages, salt="mine")
                pulled = counters.eventually(
                    lambda: (counters.read(prefill) - before).received,
                    lambda received: received >= second.matched * KV_BYTES_PER_TOKEN,
                )
            with client_of(decode) as plain:
                assert_same(second, chat(plain, messages, salt=uuid.uuid4().hex), "the turn with reuse")
        assert second.reuse["path"] == "reuse"
        assert second.matched > 0
        assert pulled == second.matched * KV_BYTES_PER_TOKEN
        for _, _, _, process in engines:
            process.send_signal(signal.SIGTERM)
        for host, _, log, process in engines:
            assert process.wait(STOP_S) == 0, log.read_text()[-2000:]
            assert counters.eventually(host.processes, lambda left: not left, STOP_S) == []
