"""Engines as their containers start them: the image's entry point, compose.yaml's command and environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from deploy.compose.project import services
from deploy.docker.dockerfile import stages
from rig.command import free_port
from rig.fleet import router

STARTS_S = 300.0
ENDS_S = 60.0
CLEAR = "Sentences of an agent's instructions. " * 40


@dataclass
class Container:
    """``check``: what its health check runs."""

    url: str
    process: subprocess.Popen[bytes]
    check: list[str]
    log: Path

    def well(self) -> bool:
        return subprocess.run(self.check, capture_output=True, timeout=60).returncode == 0

    def wait(self) -> None:
        end = time.monotonic() + STARTS_S
        while not self.well():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.2)


@contextmanager
def container(role: str, surroundings: Mapping[str, str], folder: Path) -> Iterator[Container]:
    """One service of profile cpu on ports of its own, on loopback since all share one network here."""
    port, side = str(free_port()), str(free_port())
    knobs = {f"{role.upper()}_PORT": port, f"{role.upper()}_SIDE_CHANNEL_PORT": side, "CPU_MODEL": "tiny"}
    knobs |= {"ANTIPHON_ENGINE_MAX_MODEL_LEN": "4096", "ANTIPHON_ENGINE_THREADS": "1"}
    service = services("cpu", **knobs)[f"{role}-cpu"]
    here = {"ANTIPHON_ENGINE_HOST": "127.0.0.1", "ANTIPHON_ENGINE_ADDRESS": "127.0.0.1"}
    programs = Path(sys.executable).parent
    words = [*stages()["engine-cpu"].entrypoint, *service["command"]]
    check = [str(programs / service["healthcheck"]["test"][1]), *service["healthcheck"]["test"][2:]]
    log = folder / f"{role}.log"
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            [str(programs / words[0]), *words[1:]],
            env={**surroundings, **service["environment"], **here},
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield Container(f"http://127.0.0.1:{port}", process, check, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_an_engine_is_well_once_it_answers(role: str, fake_vllm: dict[str, str], tmp_path: Path) -> None:
    """The simulator stands for vLLM."""
    pytest.importorskip("safetensors")
    with container(role, fake_vllm, tmp_path) as engine:
        assert not engine.well()
        engine.wait()
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(ENDS_S) == 0
        assert not engine.well()


@pytest.mark.engine
def test_real_engines_of_the_cpu_profile_serve_and_reuse(tmp_path: Path) -> None:
    surroundings = {key: value for key, value in os.environ.items() if not key.startswith("ANTIPHON_ENGINE")}
    with ExitStack() as running:
        engines = [
            running.enter_context(container(role, surroundings, tmp_path)) for role in ("prefill", "decode")
        ]
        for engine in engines:
            engine.wait()
        url = running.enter_context(router(engines[0].url, engines[1].url, tmp_path / "router.log"))
        messages = [{"role": "user", "content": CLEAR}]
        said = [ask(url, messages)]
        messages += [said[0].json()["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        said.append(ask(url, messages))
    paths = [reply.headers["x-antiphon-reuse"].partition(";")[0] for reply in said]
    assert paths == ["path=cold", "path=reuse"]


def ask(url: str, messages: list[dict[str, str]]) -> httpx.Response:
    body = {"model": "tiny", "messages": messages, "max_tokens": 16, "conversation_id": "c", "temperature": 0}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=STARTS_S, trust_env=False)
    assert reply.status_code == 200, reply.text
    return reply
