"""``antiphon up`` as a user runs it: processes, sockets, the router; the simulator stands for vLLM."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import httpx
import pytest

from antiphon_server.stack.guard import descendants
from rig.foreground import foreground

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

PATIENCE_S = 120.0


class Up:
    """A running ``antiphon up``, its output and the processes below it."""

    def __init__(self, environ: dict[str, str], folder: Path, *options: str) -> None:
        self.output = folder / "output"
        command = ["up", "--model", "tiny", *options]
        command += ["--log-dir", str(folder / "logs"), "--port", "18000"]
        self.process = foreground(*command, output=self.output, environ=environ)
        self.members: list[int] = []

    def text(self) -> str:
        return self.output.read_text()

    def wait_ready(self) -> str:
        """Base URL of the router."""
        end = time.monotonic() + PATIENCE_S
        while "Ctrl-C" not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.05)
        self.members = descendants(self.process.pid)
        found = re.search(r"router\s+(http://\S+)/v1", self.text())
        assert found
        return found[1]

    def wait_ended(self) -> int:
        return self.process.wait(PATIENCE_S)

    def left(self) -> list[int]:
        return [pid for pid in self.members if _alive(pid)]

    def wait_nothing_left(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.left():
            assert time.monotonic() < end, self.left()
            time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stop(up: Up) -> None:
    if up.process.poll() is None:
        up.process.send_signal(signal.SIGINT)
        up.process.send_signal(signal.SIGINT)
    up.wait_ended()


def test_a_stack_comes_up_tells_its_addresses_and_stops_on_ctrl_c(
    fake_vllm: dict[str, str], tmp_path: Path
) -> None:
    up = Up(fake_vllm, tmp_path, "--decode", "2")
    try:
        url = up.wait_ready()
        assert httpx.get(f"{url}/ready").status_code == 200
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "tiny"
        for name in ("prefill-0", "decode-0", "decode-1", "router"):
            assert name in up.text()
            log = tmp_path / "logs" / f"{name}.log"
            assert log.exists()
            assert str(log) in up.text()
        assert """"messages": [{"role": "user", "content": "Hello"}]}'""" in up.text()  # to be copied whole
        assert "print(client.chat.completions.create" in up.text()
        assert ".choices[0].message.content)" in up.text()
        assert len(up.members) == 8  # four processes, each with its guard
        up.process.send_signal(signal.SIGINT)
        assert up.wait_ended() == 0
        assert up.left() == []
    finally:
        stop(up)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_other_ways_to_ask_stop_it_too(
    fake_vllm: dict[str, str], tmp_path: Path, signum: signal.Signals
) -> None:
    up = Up(fake_vllm, tmp_path)
    try:
        up.wait_ready()
        up.process.send_signal(signum)
        assert up.wait_ended() == 0
        assert up.left() == []
    finally:
        stop(up)


def test_killing_it_leaves_nothing_behind(fake_vllm: dict[str, str], tmp_path: Path) -> None:
    up = Up(fake_vllm, tmp_path)
    try:
        up.wait_ready()
        assert len(up.left()) == 6
        os.kill(up.process.pid, signal.SIGKILL)
        up.wait_ended()
        up.wait_nothing_left()
    finally:
        stop(up)


def test_an_engine_that_does_not_start_ends_it_with_the_reason(
    fake_vllm: dict[str, str], tmp_path: Path
) -> None:
    up = Up({**fake_vllm, "FAKE_DIES": "decode"}, tmp_path)
    assert up.wait_ended() == 1
    assert "decode-0 ended with exit code 3" in up.text()
    assert "no memory for KV cache" in up.text()
    assert str(tmp_path / "logs" / "decode-0.log") in up.text()


def test_an_engine_that_ends_later_ends_it_with_the_reason(fake_vllm: dict[str, str], tmp_path: Path) -> None:
    ending = tmp_path / "end"
    up = Up({**fake_vllm, "FAKE_DIES_LATER": str(ending)}, tmp_path)
    try:
        up.wait_ready()
        ending.touch()
        assert up.wait_ended() == 1
        assert "ended with exit code 4" in up.text()
        assert up.left() == []
    finally:
        stop(up)


def test_what_cannot_run_here_is_refused_before_anything_starts(
    fake_vllm: dict[str, str], tmp_path: Path
) -> None:
    up = Up(fake_vllm, tmp_path, "--preset", "efa", "--prefill", "64")
    assert up.wait_ended() == 1
    assert "of the 65 needed" in up.text()
    assert "address = 127.0.0.1" in up.text()
    assert not (tmp_path / "logs").exists()


def test_a_log_folder_that_cannot_be_made_is_named(fake_vllm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file, not a folder")
    up = Up(fake_vllm, tmp_path)
    assert up.wait_ended() == 1
    assert str(tmp_path / "logs") in up.text()
    assert "Traceback" not in up.text()


def test_print_starts_and_builds_nothing(fake_vllm: dict[str, str], tmp_path: Path) -> None:
    up = Up({**fake_vllm, "ANTIPHON_ENGINE_KEY": "s3cret"}, tmp_path, "--print")
    assert up.wait_ended() == 0
    assert up.text().count("vllm.entrypoints.openai.api_server") == 2
    assert "antiphon_server.cli router" in up.text()
    assert "s3cret" not in up.text()
    assert not (tmp_path / "logs").exists()
    assert not (tmp_path / "cache").exists()
