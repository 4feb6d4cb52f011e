"""A router that is told to stop, as a process: nobody's answer is cut, nothing is left pinned."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, serve
from rig.command import Command, running

SLOW = {"answer_tokens": 40, "decode_rate": 40.0}
"""An answer of a second, so that there is a time to stop in."""
BODY = {
    "model": "simulated",
    "messages": [{"role": "user", "content": "Name the first letters, please, and take your time about it."}],
    "conversation_id": "c",
    "stream": True,
}


@contextlib.asynccontextmanager
async def fleet(*arguments: str, **decode: Any) -> AsyncIterator[tuple[Command, SimulatedEngine]]:
    cluster = SimulatedCluster()
    prefill = SimulatedEngine(Settings(role="prefill", threshold=0), cluster=cluster)
    engine = SimulatedEngine(Settings(role="decode", **decode), cluster=cluster)
    async with (
        serve(prefill) as p,
        serve(engine) as d,
        running("--prefill", p, "--decode", d, "--no-calibrate", *arguments) as command,
    ):
        yield command, engine


@contextlib.asynccontextmanager
async def stream(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[str]]:
    """A turn whose first bytes have come."""
    async with client.stream("POST", "/v1/chat/completions", json=BODY) as reply:
        assert reply.status_code == 200
        lines = reply.aiter_lines()
        await anext(lines)
        yield lines


async def test_stream_ends_whole_new_turn_is_refused_and_leases_are_released() -> None:
    async with fleet(**SLOW) as (command, decode):
        body = {**BODY, "conversation_id": "earlier", "stream": False, "max_tokens": 2}
        assert (await command.client.post("/v1/chat/completions", json=body)).status_code == 200
        assert decode.pinned_blocks > 0
        async with stream(command.client) as lines:
            command.signal(signal.SIGTERM)
            await command.told("router.draining")
            ready = await command.client.get("/ready")
            assert (ready.status_code, ready.json()["status"]) == (503, "draining")
            refused = await command.client.post("/v1/chat/completions", json=BODY)
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert (await command.client.get("/v1/models")).status_code == 503
            assert (await command.client.get("/health")).status_code == 200
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert await command.ended() == 0
        assert decode.pinned_blocks == 0
        assert not command.events("router.cut")


async def test_refusal_has_the_shape_of_the_surface() -> None:
    async with fleet(**SLOW) as (command, _), stream(command.client):
        command.signal(signal.SIGTERM)
        await command.told("router.draining")
        refused = await command.client.post("/v1/messages", json=BODY)
        assert (refused.status_code, refused.json()["type"]) == (503, "error")


async def test_interrupt_drains_too() -> None:
    async with fleet() as (command, _):
        command.signal(signal.SIGINT)
        assert await command.ended() == 0


async def test_stream_is_cut_when_the_grace_is_over() -> None:
    async with fleet("--shutdown-grace", "0.2", answer_tokens=4000, decode_rate=40.0) as (command, decode):
        async with stream(command.client) as lines:
            command.signal(signal.SIGTERM)
            with contextlib.suppress(httpx.TransportError):
                assert "data: [DONE]" not in [line async for line in lines]
        assert await command.ended() == 0
        assert command.events("router.cut")[0]["in_flight"] == 1
        assert decode.pinned_blocks == 0


async def test_second_signal_ends_at_once() -> None:
    arguments = ("--shutdown-grace", "1000")
    async with (
        fleet(*arguments, answer_tokens=4000, decode_rate=10.0) as (command, _),
        stream(command.client),
    ):
        command.signal(signal.SIGTERM)
        await command.told("router.draining")
        command.signal(signal.SIGTERM)
        assert await command.ended() == 1


async def test_address_in_use_is_a_failure_to_start() -> None:
    async with fleet() as (command, _):
        port = str(command.client.base_url.port)
        arguments = ["--port", port, "--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:10"]
        with pytest.raises(AssertionError, match="address already in use"):
            async with running(*arguments):
                pass


async def certify(folder: Path) -> ssl.SSLContext:
    """A fresh certificate for this host, and a client's trust in it alone."""
    await asyncio.to_thread(
        subprocess.run,
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return ssl.create_default_context(cafile=str(folder / "cert.pem"))


async def test_serves_tls_and_takes_a_renewed_certificate_on_sighup(tmp_path: Path) -> None:
    trust = await certify(tmp_path)
    cluster = SimulatedCluster()
    prefill = SimulatedEngine(Settings(role="prefill", threshold=0), cluster=cluster)
    decode = SimulatedEngine(Settings(role="decode"), cluster=cluster)
    body = {**BODY, "stream": False}
    tls = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    async with serve(prefill) as p, serve(decode) as d:
        arguments = ["--prefill", p, "--decode", d, "--no-calibrate", *tls]
        async with running(*arguments, scheme="https", verify=trust) as command:
            assert (await command.client.post("/v1/chat/completions", json=body)).status_code == 200
            renewed = await certify(tmp_path)
            command.signal(signal.SIGHUP)
            await command.told("config.reloaded")
            base = command.client.base_url
            async with httpx.AsyncClient(base_url=base, verify=renewed, trust_env=False) as client:
                assert (await client.get("/ready")).status_code == 200
