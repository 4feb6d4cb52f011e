"""The scripts of a host: sound, the same however often they run, and dry when they are asked to be."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from antiphon_server.cli import app
from deploy.hosts.sites import EXAMPLES

SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.sh") if path.name != "common.sh")
PATIENCE_S = 60


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The folder of d1 in the larger example: two decode engines and a router."""
    site = str(EXAMPLES / "site-fleet.yaml")
    ran = CliRunner().invoke(app, ["hosts", site, "--host", "d1", "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    return tmp_path / "out" / "d1"


class Machine:
    """Stands for a host: its own ``/etc``, and programs that only write down how they were called."""

    def __init__(self, root: Path) -> None:
        self.etc = root / "etc"
        self.prefix = root / "opt"
        self.calls = root / "calls"
        self._bin = root / "bin"
        self._bin.mkdir(parents=True)
        self.etc.mkdir()
        self.calls.write_text("")
        for name in ("systemctl", "apt-get", "dnf", "useradd", "sysctl", "ldconfig"):
            self.program(name, f'echo "{name} $*" >> {self.calls}')

    def program(self, name: str, body: str) -> None:
        file = self._bin / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(0o755)

    def software(self) -> None:
        """As ``prepare.sh`` leaves it."""
        (self.prefix / "venv" / "bin").mkdir(parents=True)
        program = self.prefix / "venv" / "bin" / "antiphon"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)

    def run(self, script: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{self._bin}:{os.environ['PATH']}", "ETC": str(self.etc), "PREFIX": str(self.prefix)}
        return subprocess.run(
            [str(script), *words],
            env={**env, "HOME": os.environ.get("HOME", "/"), **environ},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def files(self) -> dict[str, str]:
        return {str(f.relative_to(self.etc)): f.read_text() for f in self.etc.rglob("*") if f.is_file()}

    def called(self) -> list[str]:
        """Since it was asked last."""
        lines = self.calls.read_text().splitlines()
        self.calls.write_text("")
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def shellcheck() -> str | None:
    beside = Path(sys.executable).with_name("shellcheck")
    return str(beside) if beside.exists() else shutil.which("shellcheck")


@pytest.mark.skipif(shellcheck() is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    names = [*SCRIPTS, "common.sh"]
    command = [str(shellcheck()), "--external-sources", *names]
    ran = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_stops_at_the_first_failure_and_refuses_unknown_options(
    script: str, host: Path, machine: Machine
) -> None:
    assert "\nset -euo pipefail\n" in (EXAMPLES / script).read_text()
    ran = machine.run(host / script, "--dryrun")
    assert ran.returncode == 1
    assert "no option --dryrun" in ran.stderr
    assert machine.called() == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_dry_run_changes_nothing(script: str, host: Path, machine: Machine) -> None:
    for name in ("curl", "tar", "install", "uv", "python3.12"):
        machine.program(name, f'echo "{name} $*" >> {machine.calls}')
    ran = machine.run(host / script, "--dry-run", HUGE_PAGES="128")
    assert ran.returncode == 0, ran.stderr
    assert "+ " in ran.stdout
    assert machine.called() == []
    assert machine.files() == {}
    assert not machine.prefix.exists()


def test_preparing_installs_the_versions_that_are_named(host: Path, machine: Machine) -> None:
    (host / "antiphon-9.9-py3-none-any.whl").write_text("")
    named = {
        "VLLM_VERSION": "1.2.3",
        "NIXL_VERSION": "4.5.6",
        "EFA_INSTALLER_VERSION": "7.8.9",
        "HUGE_PAGES": "128",
    }
    said = machine.run(host / "prepare.sh", "--dry-run", **named).stdout
    for wanted in (
        "vllm==1.2.3",
        "nixl==4.5.6",
        "aws-efa-installer-7.8.9.tar.gz",
        "vm.nr_hugepages",
        "9.9-py3",
    ):
        assert wanted in said.replace("\\", ""), wanted
    assert "hugepages" not in machine.run(host / "prepare.sh", "--dry-run").stdout


def test_preparing_twice_installs_nothing_twice(host: Path, machine: Machine) -> None:
    (host / "antiphon-9.9-py3-none-any.whl").write_text("")
    python = machine.prefix / "venv" / "bin" / "python"
    make = f"mkdir -p {python.parent}; touch {python}; chmod +x {python}"
    machine.program("uv", f'echo "uv $*" >> {machine.calls}; if [[ $1 == venv ]]; then {make}; fi')
    machine.program("id", "echo 0")  # root, and the user is there
    machine.program("install", f'echo "install $*" >> {machine.calls}')
    for name in ("nvidia-smi", "fi_info"):
        machine.program(name, "exit 0")
    first = machine.run(host / "prepare.sh")
    assert first.returncode == 0, first.stderr
    calls = machine.called()
    assert f"uv venv --python 3.12 {machine.prefix}/venv" in calls
    assert machine.run(host / "prepare.sh").returncode == 0
    assert machine.called() == [call for call in calls if not call.startswith("uv venv")]
    assert not any("useradd" in call or "curl" in call for call in calls)


def test_a_host_of_routers_alone_gets_no_engine_software(tmp_path: Path, machine: Machine) -> None:
    written = (EXAMPLES / "site.yaml").read_text().replace(", router: true", "")
    site = tmp_path / "site.yaml"
    site.write_text(written.replace("hosts:\n", "hosts:\n  r0: {address: 10.0.0.9, router: true}\n"))
    ran = CliRunner().invoke(app, ["hosts", str(site), "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    said = machine.run(tmp_path / "out" / "r0" / "prepare.sh", "--dry-run").stdout
    assert "vllm==" not in said
    assert "efa_installer" not in said
    assert "vllm==" in machine.run(tmp_path / "out" / "d0" / "prepare.sh", "--dry-run").stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="scripts that change the machine want root")
def test_starting_twice_is_starting_once(host: Path, machine: Machine) -> None:
    machine.software()
    (machine.etc / "antiphon").mkdir()
    (machine.etc / "antiphon" / "secrets.env").write_text("ANTIPHON_ENGINE_KEY=s3cret\n")
    first = machine.run(host / "start.sh")
    assert first.returncode == 0, first.stderr
    files, calls = machine.files(), machine.called()
    assert sorted(files) == [
        "antiphon/engine-decode-0.env",
        "antiphon/engine-decode-1.env",
        "antiphon/router.env",
        "antiphon/secrets.env",
        "systemd/system/antiphon-engine@.service",
        "systemd/system/antiphon-router.service",
    ]
    assert calls == [
        "systemctl daemon-reload",
        "systemctl enable --now antiphon-engine@decode-0.service",
        "systemctl enable --now antiphon-engine@decode-1.service",
        "systemctl enable --now antiphon-router.service",
    ]
    again = machine.run(host / "start.sh")
    assert (again.returncode, machine.files(), machine.called()) == (0, files, calls)
    assert "s3cret" not in first.stdout + first.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="scripts that change the machine want root")
def test_engines_of_an_earlier_site_go(host: Path, machine: Machine) -> None:
    machine.software()
    (machine.etc / "antiphon").mkdir()
    for name in ("secrets.env", "engine-decode-7.env"):
        (machine.etc / "antiphon" / name).write_text("")
    assert machine.run(host / "start.sh").returncode == 0
    assert "systemctl disable --now antiphon-engine@decode-7.service" in machine.called()
    assert "antiphon/engine-decode-7.env" not in machine.files()
    assert "antiphon/engine-decode-0.env" in machine.files()


@pytest.mark.skipif(os.geteuid() != 0, reason="scripts that change the machine want root")
def test_a_router_that_is_elsewhere_now_goes(host: Path, machine: Machine) -> None:
    """What was copied for the earlier site still lies in the folder."""
    machine.software()
    (machine.etc / "antiphon").mkdir()
    (machine.etc / "antiphon" / "secrets.env").write_text("")
    (host / "host.env").write_text("PRESET=efa\nENGINES=decode-0\nENGINE_URLS=http://x\nROUTER_URL=\n")
    assert machine.run(host / "start.sh").returncode == 0
    called = machine.called()
    assert "systemctl disable --now antiphon-router.service" in called
    assert "systemctl enable --now antiphon-router.service" not in called
    assert "antiphon/router.env" not in machine.files()


@pytest.mark.skipif(os.geteuid() != 0, reason="scripts that change the machine want root")
def test_starting_asks_for_software_and_a_key_first(host: Path, machine: Machine) -> None:
    assert "run prepare.sh first" in machine.run(host / "start.sh").stderr
    machine.software()
    assert "write ANTIPHON_ENGINE_KEY=... into it" in machine.run(host / "start.sh").stderr
    assert (machine.called(), machine.files()) == ([], {})


def test_stopping_ends_the_router_first(host: Path, machine: Machine) -> None:
    said = machine.run(host / "stop.sh", "--dry-run").stdout
    stopped = [line.split()[-1] for line in said.splitlines() if line.startswith("+")]
    assert stopped[0] == "antiphon-router.service"
    assert len(stopped) == 3


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers as an engine that has received KV."""

    PAGE: ClassVar[str] = (
        'vllm:nixl_xfer_time_seconds_sum{engine="0"} 0.5\n'
        'vllm:nixl_xfer_time_seconds_count{engine="0"} 4.0\n'
        'vllm:nixl_bytes_transferred_sum{engine="0"} 2.5e+10\n'
        'vllm:nixl_num_failed_transfers_total{engine="0"} 1.0\n'
    )

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.PAGE.encode() if self.path == "/metrics" else b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def engine_url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_checking_tells_what_is_in_order_and_how_kv_travels(
    host: Path, machine: Machine, engine_url: str
) -> None:
    text = f"PRESET=gpu\nENGINES=decode-0\nENGINE_URLS={engine_url}\nROUTER_URL={engine_url}\n"
    (host / "host.env").write_text(text)
    machine.program("nvidia-smi", "echo GPU 0")
    ran = machine.run(host / "check.sh")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "transfers 4, failed 1, GB 25.00, GB/s while transferring 50.00" in ran.stdout
    assert ran.stdout.count("ok    ") == 5
    machine.program("systemctl", "echo inactive; exit 3")
    broken = machine.run(host / "check.sh")
    assert broken.returncode == 1
    assert "FAIL  antiphon-engine@decode-0.service\ninactive" in broken.stdout
    assert "2 not in order" in broken.stderr


@pytest.mark.parametrize(("log", "code"), [("Backend LIBFABRIC was instantiated", 0), ("Backend UCX was", 1)])
def test_checking_sees_which_backend_an_engine_took(
    log: str, code: int, host: Path, machine: Machine, engine_url: str
) -> None:
    (host / "host.env").write_text(f"PRESET=efa\nENGINES=decode-0\nENGINE_URLS={engine_url}\nROUTER_URL=\n")
    machine.program("journalctl", f"echo 'NIXL INFO {log}'")
    ran = machine.run(host / "check.sh")
    assert ("ok    decode-0 uses LIBFABRIC" in ran.stdout) == (code == 0), ran.stdout
