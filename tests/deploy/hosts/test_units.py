"""The units are sound, and what they start is what ``antiphon up`` starts: one source."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.deploy.host_files import GRACE, STANDING_STOP, STOP_MARGIN, HostFiles, standing
from antiphon_server.router.config.config import load
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.stack import ports
from antiphon_server.stack.command import threads
from antiphon_server.stack.node import cores
from deploy.hosts.sites import Sites, variables
from rig.printed import Printed, commands, printed

PROGRAM = "/opt/antiphon/venv/bin/antiphon"
INSTANCE = {"antiphon-engine@.service": "prefill-0", "antiphon-router.service": ""}


@dataclass(frozen=True)
class Unit:
    """``text``: as rendered. ``files``: of its host."""

    text: str
    files: dict[str, str]
    instance: str = ""

    def values(self, key: str) -> list[str]:
        return re.findall(rf"^{key}=(.*)$", self.text, re.MULTILINE)

    def environment(self) -> dict[str, str]:
        """What its environment files say, as systemd reads them; those that may be missing are."""
        found: dict[str, str] = {}
        for named in self.values("EnvironmentFile"):
            if not named.startswith("-"):
                name = Path(named.replace("%i", self.instance)).name
                found |= variables(self.files[name])
        return found

    def words(self, environment: dict[str, str]) -> list[str]:
        """ExecStart as systemd splits it: a bare ``$NAME`` becomes the words of its value, or none."""
        (line,) = self.values("ExecStart")
        words: list[str] = []
        for word in shlex.split(line):
            name = re.fullmatch(r"\$(\w+)", word)
            words += shlex.split(environment.get(name[1], "")) if name else [word]
        assert words[0] == PROGRAM
        return words[1:]


def own_site(**engines: Any) -> dict[str, Any]:
    """Of this machine: what ``antiphon up --address 127.0.0.1`` would start."""
    host = {"address": "127.0.0.1", "prefill": 1, "decode": 1, "router": True}
    shared = {"threads": threads(2, cores()), **engines}
    return {"model": "tiny", "preset": "cpu", "hosts": {"here": host}, "engines": shared}


def started(host: HostFiles, engine: str) -> Printed:
    """What the unit's very ExecStart becomes, by ``--print``."""
    unit = Unit(host.files["antiphon-engine@.service"], dict(host.files), engine)
    environment = unit.environment()
    command = [sys.executable, "-m", "antiphon_server.cli", *unit.words(environment), "--print"]
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "ANTIPHON_CACHE") if name in os.environ}
    ran = subprocess.run(
        command, env={**kept, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return printed(ran.stdout)[engine]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings and models of the developer's, or of a test before, are not those of a host."""
    for name in [name for name in os.environ if name.startswith(("ANTIPHON_", "UCX_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def all_ports_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """On hosts that are not here they are taken for free."""
    allocate = ports.allocate
    monkeypatch.setattr(ports, "allocate", lambda settings: allocate(settings, lambda port: True))


SHAPES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plain": ({}, ()),
    "another shape": (
        {"prefill_cache": False, "max_model_len": 512, "kv_space": 2},
        ("--no-prefill-cache", "--max-model-len", "512", "--kv-space", "2"),
    ),
}


@pytest.mark.usefixtures("all_ports_free")
@pytest.mark.parametrize(("engines", "flags"), SHAPES.values(), ids=SHAPES)
def test_a_unit_starts_what_up_starts(engines: dict[str, Any], flags: tuple[str, ...], sites: Sites) -> None:
    up = commands("up", "--model", "tiny", "--address", "127.0.0.1", *flags)
    host = sites.hosts(own_site(**engines))["here"]
    for name in ("prefill-0", "decode-0"):
        unit = started(host, name)
        assert unit == up[name]
    assert set(up) == {"prefill-0", "decode-0", "router"}


@pytest.mark.usefixtures("all_ports_free")
def test_a_router_unit_is_told_what_up_tells_the_router(sites: Sites) -> None:
    up = commands("up", "--model", "tiny", "--address", "127.0.0.1")["router"]
    host = sites.hosts(own_site())["here"]
    unit = Unit(host.files["antiphon-router.service"], dict(host.files))
    assert unit.words({}) == ["router"]
    words = up.argv[up.argv.index("router") + 1 :]
    flags: dict[str, Any] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        name = flag.removeprefix("--")
        flags[name] = [*flags.get(name, []), value] if name in {"prefill", "decode"} else value
    ours, theirs = load({}, unit.environment()).settings, load(flags, {}).settings
    assert ours is not None
    assert theirs is not None
    named = {name: getattr(theirs, name) for name in RouterSettings.model_fields}
    assert {name: getattr(ours, name) for name in named} == named


def test_what_is_run_before_a_start_is_there(sites: Sites) -> None:
    """The doctor looks at any machine; here only that it can be asked so."""
    host = sites.hosts(own_site())["here"]
    for name in INSTANCE:
        unit = Unit(host.files[name], dict(host.files), INSTANCE[name])
        words = unit.values("ExecStartPre")[-1].split()[1:]
        environment = {**unit.environment(), "PATH": os.environ["PATH"]}
        more = ["--help"] if words[0] == "doctor" else []
        command = [sys.executable, "-m", "antiphon_server.cli", *words, *more]
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert all(word in ran.stdout for word in words[1:])


@pytest.mark.parametrize("engine", ["prefill-0", "decode-0"])
def test_on_efa_a_unit_starts_what_is_written_for_people(
    engine: str, announcement: dict[str, Any], sites: Sites
) -> None:
    (host,) = (one for one in sites.hosts(announcement).values() if f"engine-{engine}.env" in one.files)
    assert started(host, engine) == printed(host.files["commands.txt"].partition("\n")[2])[engine]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", INSTANCE)
def test_systemd_finds_nothing_wrong_with_a_unit(name: str, tmp_path: Path) -> None:
    assert verified(standing("systemd")[name], name, tmp_path) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_would_find_what_is_wrong(tmp_path: Path) -> None:
    unit = standing("systemd")["antiphon-router.service"]
    wrong = unit.replace("Restart=always", "Restart=perhaps")
    (said,) = verified(wrong, "antiphon-router.service", tmp_path)
    assert "perhaps" in said


def verified(text: str, name: str, folder: Path) -> list[str]:
    """What ``systemd-analyze verify`` has against a unit, with a program where the units look for it. It
    reads what the unit is to start after, too; what is wrong with that on this machine is not ours."""
    program = folder / "bin" / "antiphon"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = folder / name.replace("@", f"@{INSTANCE[name]}")
    unit.write_text(text.replace(PROGRAM, str(program)))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return [line for line in ran.stderr.splitlines() if "antiphon" in line]


@pytest.mark.parametrize("name", INSTANCE)
def test_a_unit_looks_before_it_starts_and_pins_what_rdma_needs(name: str) -> None:
    unit = Unit(standing("systemd")[name], {})
    looks = unit.values("ExecStartPre")[-1]
    assert looks.startswith(PROGRAM)
    assert unit.values("Restart") == ["always"]
    assert unit.values("RestartPreventExitStatus") == ["2"]
    assert unit.values("KillMode") == ["mixed"]
    if name.startswith("antiphon-engine"):
        assert looks.split()[1] == "doctor"
        assert unit.values("LimitMEMLOCK") == ["infinity"]
        forbidding = (
            "PrivateDevices",
            "DevicePolicy",
            "DeviceAllow",
            "ProtectClock",
            "MemoryDenyWriteExecute",
        )
        assert [key for key in forbidding if unit.values(key)] == []
    else:
        assert unit.values("TimeoutStopSec") == [str(STANDING_STOP)]


def test_the_routers_grace_fits_into_its_units() -> None:
    grace = RouterSettings.model_fields["shutdown_grace"].default
    pull = RouterSettings.model_fields["pull_grace"].default
    assert grace == GRACE
    assert grace + STOP_MARGIN <= STANDING_STOP
    assert pull < STOP_MARGIN
