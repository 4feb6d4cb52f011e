"""``antiphon router`` as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PATIENCE = 15.0


def free_port() -> int:
    """Nobody listens on it now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Command:
    """``log``: file of its stderr."""

    process: asyncio.subprocess.Process
    client: httpx.AsyncClient
    log: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of its log so far that tell of ``name``."""
        lines = []
        for line in self.log.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(line))
        return [line for line in lines if line["event"] == name]

    async def told(self, name: str, after: int = 0) -> dict[str, Any]:
        """The line of its log that tells of ``name``, once it is there. ``after``: so many others."""
        async with asyncio.timeout(PATIENCE):
            while len(events := self.events(name)) <= after:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return events[after]

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@asynccontextmanager
async def running(
    *arguments: str, environ: dict[str, str] | None = None, scheme: str = "http", verify: Any = True
) -> AsyncIterator[Command]:
    """Start it on a free port and wait until it is ready."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [
            "-c",
            "from antiphon_server.cli import main; main()",
            "router",
            "--port",
            str(port),
            *arguments,
        ]
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, stderr=stream, stdout=stream, env=environ or {}
            )
        base = f"{scheme}://127.0.0.1:{port}"
        async with httpx.AsyncClient(
            base_url=base, timeout=PATIENCE, verify=verify, trust_env=False
        ) as client:
            try:
                async with asyncio.timeout(PATIENCE):
                    while not await _ready(client):
                        assert process.returncode is None, log.read_text()
                        await asyncio.sleep(0.02)
                yield Command(process, client, log)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()


async def _ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/ready")).status_code == 200
    except httpx.TransportError:
        return False
