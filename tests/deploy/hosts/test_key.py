"""One key for all hosts: never a second one, and nothing else of a host's secrets is touched."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from antiphon_server.cli import app
from deploy.hosts.sites import EXAMPLES

PATIENCE_S = 60
ADDRESSES = {"p0": "10.0.0.10", "p1": "10.0.0.11", "d0": "10.0.0.12", "d1": "10.0.0.13"}


class Fleet:
    """The hosts of the larger example, each a folder; ``ssh`` runs what it is told in it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._bin = root / "bin"
        self._bin.mkdir(parents=True)
        self._program("id", "echo 0")
        self._program("sudo", 'exec "$@"')
        self._program(
            "ssh",
            '[[ "$1" != -n ]] || { shift; exec < /dev/null; }\n'
            f'cd "{root}/${{1#*@}}" || exit 255\nshift\nETC="$PWD/etc" exec "$@"',
        )
        for address in ADDRESSES.values():
            (root / address / "etc" / "antiphon").mkdir(parents=True)
            scripts = root / address / "antiphon"
            scripts.mkdir()
            for name in ("key.sh", "common.sh"):
                (scripts / name).write_text((EXAMPLES / name).read_text())
                (scripts / name).chmod(0o755)

    def _program(self, name: str, body: str) -> None:
        (self._bin / name).write_text(f"#!/bin/bash\n{body}\n")
        (self._bin / name).chmod(0o755)

    def secrets(self, host: str) -> Path:
        return self._root / ADDRESSES[host] / "etc" / "antiphon" / "secrets.env"

    def lose(self, host: str) -> None:
        (self._root / ADDRESSES[host]).rename(self._root / "lost")

    def keys(self) -> list[str]:
        """All that are there, once each."""
        told = {
            line
            for host in ADDRESSES
            if self.secrets(host).exists()
            for line in self.secrets(host).read_text().splitlines()
            if line.startswith("ANTIPHON_ENGINE_KEY=")
        }
        return sorted(line.partition("=")[2] for line in told)

    def take_step_3(self, *options: str, key: str = "") -> subprocess.CompletedProcess[str]:
        """As ``antiphon hosts`` prints it."""
        site = str(EXAMPLES / "site-fleet.yaml")
        printed = CliRunner().invoke(app, ["hosts", site, *options, "--out", str(self._root / "out")]).stdout
        step = "# 3." + printed.partition("# 3.")[2].partition("# 4.")[0]
        return subprocess.run(
            ["bash"],
            input=step,
            env={"PATH": f"{self._bin}:{os.environ['PATH']}", "KEY": key},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.fixture
def fleet_of_hosts(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "fleet")


def test_all_hosts_get_one_key_and_keep_it(fleet_of_hosts: Fleet) -> None:
    assert fleet_of_hosts.take_step_3().returncode == 0
    (key,) = fleet_of_hosts.keys()
    assert len(key) == 64
    assert all(fleet_of_hosts.secrets(host).exists() for host in ADDRESSES)
    assert fleet_of_hosts.secrets("d1").stat().st_mode & 0o777 == 0o600
    assert fleet_of_hosts.take_step_3().returncode == 0
    assert fleet_of_hosts.keys() == [key]


def test_other_secrets_of_a_host_stay(fleet_of_hosts: Fleet) -> None:
    file = fleet_of_hosts.secrets("p0")
    file.write_text("HF_TOKEN=hf_x\nANTIPHON_ENGINE_KEY=\nANTIPHON_STORE='redis://:a b@10.0.0.20'")
    assert fleet_of_hosts.take_step_3(key="k3y").returncode == 0
    assert file.read_text() == (
        "HF_TOKEN=hf_x\nANTIPHON_STORE='redis://:a b@10.0.0.20'\nANTIPHON_ENGINE_KEY=k3y\n"
    )
    before = file.stat().st_ino
    assert fleet_of_hosts.take_step_3().returncode == 0
    assert file.stat().st_ino == before


@pytest.mark.parametrize("options", [(), ("--host", "d1")], ids=["all", "the new one"])
def test_a_new_host_gets_the_key_that_is_there(options: tuple[str, ...], fleet_of_hosts: Fleet) -> None:
    fleet_of_hosts.secrets("d0").write_text('ANTIPHON_ENGINE_KEY="k3y"\n')
    ran = fleet_of_hosts.take_step_3(*options)
    assert ran.returncode == 0, ran.stderr
    assert fleet_of_hosts.secrets("d1").read_text() == "ANTIPHON_ENGINE_KEY=k3y\n"
    assert fleet_of_hosts.secrets("d0").read_text() == 'ANTIPHON_ENGINE_KEY="k3y"\n'
    assert fleet_of_hosts.secrets("p0").exists() == (not options)


def test_no_key_is_drawn_for_one_host(fleet_of_hosts: Fleet) -> None:
    ran = fleet_of_hosts.take_step_3("--host", "d1")
    assert ran.returncode != 0
    assert "none has a key: look, then set KEY" in ran.stderr
    assert fleet_of_hosts.keys() == []
    assert fleet_of_hosts.take_step_3("--host", "d1", key="k3y").returncode == 0
    assert fleet_of_hosts.keys() == ["k3y"]


def test_no_key_is_drawn_when_a_host_may_have_one(fleet_of_hosts: Fleet) -> None:
    fleet_of_hosts.lose("d0")
    ran = fleet_of_hosts.take_step_3()
    assert ran.returncode != 0
    assert "some host was not reached" in ran.stderr
    assert fleet_of_hosts.keys() == []


def test_a_host_with_another_key_is_told_and_left(fleet_of_hosts: Fleet) -> None:
    fleet_of_hosts.secrets("p0").write_text("ANTIPHON_ENGINE_KEY=one\n")
    fleet_of_hosts.secrets("d1").write_text("ANTIPHON_ENGINE_KEY=other\n")
    ran = fleet_of_hosts.take_step_3()
    assert "has another ANTIPHON_ENGINE_KEY" in ran.stderr
    assert fleet_of_hosts.keys() == ["one", "other"]


@pytest.mark.parametrize("key", ["a b", "$(reboot)"])
def test_what_is_no_key_is_refused(key: str, fleet_of_hosts: Fleet) -> None:
    assert "no key was given" in fleet_of_hosts.take_step_3(key=key).stderr
    assert fleet_of_hosts.keys() == []


@pytest.mark.parametrize("example", ["site.yaml", "site-fleet.yaml"])
def test_no_command_swallows_those_behind_it(example: str) -> None:
    """They may be pasted, or come through a pipe; only where something is piped into it ssh may read."""
    steps = CliRunner().invoke(app, ["hosts", str(EXAMPLES / example), "--print"]).stdout
    called = [line for line in steps.splitlines() if "ssh " in line and not line.startswith("#")]
    assert called
    assert [line for line in called if "ssh -n " not in line and " | ssh " not in line] == []
