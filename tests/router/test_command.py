"""``antiphon router`` as a process, and its settings."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from antiphon_server.cli import app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, serve


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_command_serves_and_releases_on_sigterm(settled: Any) -> None:
    cluster = SimulatedCluster()
    prefill = SimulatedEngine(Settings(role="prefill", threshold=0, api_key="hush-hush"), cluster=cluster)
    decode = SimulatedEngine(Settings(role="decode", api_key="hush-hush"), cluster=cluster)
    port = free_port()
    async with (
        serve(prefill) as p,
        serve(decode) as d,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        command = [sys.executable, "-c", "from antiphon_server.cli import main; main()", "router"]
        command += ["--port", str(port), "--prefill", p, "--decode", d, "--no-calibrate"]
        process = subprocess.Popen(  # noqa: ASYNC220
            command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env={"ANTIPHON_ENGINE_KEY": "hush-hush"}
        )
        try:
            for _ in range(1000):
                assert process.poll() is None, process.communicate()
                try:
                    if (await client.get("/ready")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.02)
            body = {
                "model": "simulated",
                "messages": [{"role": "user", "content": "hello"}],
                "conversation_id": "c",
            }
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
            assert len(decode.pinned) == 1
            process.send_signal(signal.SIGTERM)
            await settled(lambda: process.poll() is not None)
            assert decode.pinned_blocks == 0
        finally:
            process.kill()
            _, errors = process.communicate()
    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert {"engine.up"} <= {line["event"] for line in lines}
    assert b"hush-hush" not in errors


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--prefill"),
        (["--prefill", "localhost:1", "--decode", "http://d"], "not http(s)://"),
        (["--prefill", "http://p", "--decode", "http://d", "--lease-ttl", "10"], "below lease_ttl"),
    ],
)
def test_command_says_what_is_wrong(arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(app, ["router", *arguments])
    assert result.exit_code == 2
    assert complaint in result.output


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_PREFILL", '["http://p:1/"]')
    monkeypatch.setenv("ANTIPHON_ENGINE_KEY", "hush-hush")
    settings = RouterSettings(decode=["http://d:1"])
    assert settings.prefill == ["http://p:1"]
    assert "hush-hush" not in repr(settings)


def test_an_engine_is_named_once() -> None:
    with pytest.raises(ValidationError, match="named twice"):
        RouterSettings(prefill=["http://p", "http://p"])
