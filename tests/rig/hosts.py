"""Two hosts on this machine: network namespaces with an address each, joined by a cable..

A namespace lives as long as a process that holds it, which ends when this one does: none is left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CLONE_NEWNET = 0x40000000
HOLDER = f"""
import ctypes, sys
sys.exit("no namespace") if ctypes.CDLL(None).unshare({CLONE_NEWNET}) else print("ready", flush=True)
sys.stdin.read()
"""
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Host:
    """``address``: of its one interface beside loopback. It has no default route."""

    address: str
    holder: int

    @property
    def network(self) -> Path:
        return Path(f"/proc/{self.holder}/ns/net")

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread opens and starts meanwhile is on the host; what it opened before stays at home."""
        with open("/proc/thread-self/ns/net") as home, self.network.open() as network:
            _enter(network.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def popen(self, command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start a program on the host. UCX looks for interfaces in /sys, which shows the host's there."""
        own = 'mount -t sysfs sysfs /sys && exec "$@"'
        with self.inside():
            return subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", own, "sh", *command], stdout=log, stderr=subprocess.STDOUT
            )

    def processes(self) -> list[int]:
        """All that run there, but for the one that holds it."""
        own = self.network.stat().st_ino
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "ns/net").stat().st_ino == own and int(process.name) != self.holder:
                    found.append(int(process.name))
        return found


def missing() -> str | None:
    """Why there can be no hosts here; None when there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount")):
        if shutil.which(program) is None:
            return f"network namespaces need the program {program} (Debian package {package})"
    try:
        with _namespace():
            return None
    except RuntimeError:
        return "this root may not make network namespaces (it lacks CAP_SYS_ADMIN)"


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two that reach each other and nobody else."""
    with _namespace() as first, _namespace() as second:
        hosts = Host("10.87.0.1", first), Host("10.87.0.2", second)
        with hosts[0].inside():
            _ip(f"link add cable type veth peer name cable netns {second}")
        for host in hosts:
            with host.inside():
                _ip(f"address add {host.address}/24 dev cable")
                _ip("link set lo up")
                _ip("link set cable up")
        yield hosts


@contextlib.contextmanager
def _namespace() -> Iterator[int]:
    """Pid of the process that holds a new one."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("no network namespace")
        yield process.pid
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _enter(network: int) -> None:
    if _LIBC.setns(network, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
