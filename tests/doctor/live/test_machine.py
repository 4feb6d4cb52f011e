"""Faults planted in the files of a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from antiphon_server.doctor.finding import Check, Examination
from antiphon_server.doctor.machine import checks
from antiphon_server.doctor.machine.examine import HERE, Reach, examine
from antiphon_server.doctor.machine.facts import Ran
from antiphon_server.stack.settings import Preset

GIB = 1024**3
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max open files            {files}                1048576              files
Max locked memory         {memlock}            unlimited            bytes
"""
FOUND = "provider: efa\n    fabric: efa\n    type: FI_EP_RDM\n"
VERSION = "fi_info: {0}\nlibfabric: {0}\nlibfabric api: {0}\n"


@dataclass
class Host:
    """A p5en host with EFA where all is well. Change what is to be wrong, then :meth:`examine` it."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    devices: int = 16
    device_files: int = 16
    gpus: int = 8
    libfabric: bool = True
    memlock: str = "unlimited"
    files: int = 65536
    huge_pages: int = 5128
    shm: int | None = 64 * GIB
    versions: dict[str, str] = field(default_factory=lambda: {"vllm": "0.32.0", "nixl": "1.5.1"})
    python: tuple[int, int] = (3, 12)
    provider: Ran | None = field(default_factory=lambda: Ran(0, FOUND))
    libfabric_version: str = "1.22.0amzn4.0"
    taken: tuple[int, ...] = ()
    asked: list[Sequence[str]] = field(default_factory=list)

    def examine(self, preset: Preset | None = None, wanted: Sequence[int] = ()) -> Examination:
        for number in range(self.devices):
            self._write(f"sys/class/infiniband/rdmap{number}s0/node_type", "")
        for number in range(self.device_files):
            self._write(f"dev/infiniband/uverbs{number}", "")
        for number in range(self.gpus):
            self._write(f"proc/driver/nvidia/gpus/{number}/information", "")
        if self.libfabric:
            self._write("opt/amazon/efa/lib/libfabric.so.1", "")
        self._write("proc/self/limits", LIMITS.format(files=self.files, memlock=self.memlock))
        self._write("proc/meminfo", f"MemTotal: 1 kB\nHugePages_Free:    {self.huge_pages}\n")
        reach = Reach(
            self._run, self._version, lambda _: self.shm, lambda p: p not in self.taken, self.python
        )
        return examine(self.environ, root=self.root, preset=preset, wanted=wanted, reach=reach)

    def _write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def _run(self, argv: Sequence[str], patience: float) -> Ran | None:
        self.asked.append(argv)
        if argv[0] == "fi_info":  # not on the path, as in a service
            return None
        return Ran(0, VERSION.format(self.libfabric_version)) if "--version" in argv else self.provider

    def _version(self, names: Sequence[str]) -> str | None:
        return next((self.versions[name] for name in names if name in self.versions), None)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def words(found: Examination) -> list[str]:
    return [finding.check for finding in found.findings]


def test_sound_host_has_no_finding_and_says_what_it_is(host: Host) -> None:
    found = host.examine(wanted=(5600,))
    assert words(found) == []
    facts = {fact.name: fact.value for fact in found.facts}
    assert facts["looked at as"] == "preset efa"
    assert facts["vLLM"] == "0.32.0"
    assert facts["libfabric"] == "1.22.0"
    assert facts["EFA interfaces"].startswith("16 (rdmap0s0")
    assert found.checked == {check.word for check in checks.MACHINE}


Plant = Callable[[Host], None]


def setting(**changes: object) -> Plant:
    def plant(host: Host) -> None:
        for name, value in changes.items():
            setattr(host, name, value)

    return plant


def with_env(**environ: str) -> Plant:
    return setting(environ=environ)


FAULTS: Mapping[str, tuple[Plant, Check, str]] = {
    "old Python": (setting(python=(3, 10)), checks.PYTHON, "3.10"),
    "no vLLM": (setting(versions={"nixl": "1.5.1"}), checks.VLLM, "not installed"),
    "old vLLM": (setting(versions={"vllm": "0.30.1", "nixl": "1.5.1"}), checks.VLLM, "0.30.1"),
    "no NIXL": (setting(versions={"vllm": "0.32.0"}), checks.NIXL, "not installed"),
    "old NIXL": (setting(versions={"vllm": "0.32.0", "nixl-cu12": "1.3.1"}), checks.NIXL, "1.3.1"),
    "no GPU": (setting(gpus=0), checks.GPUS, "0 of the 1"),
    "no interface": (setting(devices=0, environ={"FI_PROVIDER": "efa"}), checks.EFA_DEVICES, "none"),
    "device file kept from the container": (setting(device_files=1), checks.EFA_NODES, "1 of 16"),
    "no libfabric": (setting(libfabric=False), checks.LIBFABRIC, "not found"),
    "old libfabric": (setting(libfabric_version="1.20.1"), checks.LIBFABRIC, "1.20.1"),
    "no provider": (
        setting(provider=Ran(61, "fi_getinfo: -61 (No data available)\n")),
        checks.PROVIDER,
        "No data available",
    ),
    "another provider": (setting(provider=Ran(0, "provider: tcp\n")), checks.PROVIDER, "provider: tcp"),
    "provider hangs": (setting(provider=Ran(None, "")), checks.PROVIDER, "does not end"),
    "little locked memory": (setting(memlock="8388608"), checks.MEMLOCK, "8 MiB"),
    "a container's shared memory": (setting(shm=64 * 1024**2), checks.SHM, "64 MiB"),
    "no huge page": (
        setting(huge_pages=0, environ={"FI_EFA_USE_HUGE_PAGE": "1"}),
        checks.HUGE_PAGES,
        "no huge page",
    ),
    "an interface named": (with_env(NCCL_SOCKET_IFNAME="ens5"), checks.INTERFACES, "ens5"),
    "few open files": (setting(files=1024), checks.OPEN_FILES, "1024"),
    "a taken port": (setting(taken=(5600,)), checks.PORTS, "5600"),
    "an engine's taken port": (
        setting(taken=(8100,), environ={"ANTIPHON_ENGINE_PORT": "8100"}),
        checks.PORTS,
        "8100",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found_alone(name: str, host: Host) -> None:
    plant, check, said = FAULTS[name]
    plant(host)
    (finding,) = host.examine(wanted=(5600,)).findings
    assert finding.check == check.word
    assert said in finding.what
    assert finding.why
    assert finding.remedy


def test_every_check_of_a_machine_has_a_planted_fault() -> None:
    assert {check.word for _, check, _ in FAULTS.values()} == {check.word for check in checks.MACHINE}


def test_what_only_efa_needs_is_not_asked_of_a_laptop(host: Host) -> None:
    host = replace(host, devices=0, device_files=0, gpus=0, libfabric=False, memlock="8388608", shm=2 * GIB)
    found = host.examine()
    assert words(found) == []
    assert "preset cpu" in {fact.value for fact in found.facts}
    assert host.asked == []


def test_preset_that_is_named_wins_over_what_it_looks_like(host: Host) -> None:
    host = replace(host, devices=0, device_files=0, libfabric=False, provider=None)
    assert set(words(host.examine(Preset.EFA))) == {checks.EFA_DEVICES.word, checks.LIBFABRIC.word}


def test_this_machine_can_be_looked_at() -> None:
    found = examine({})
    assert found.facts
    assert HERE.run(["no-such-program"], 1.0) is None
    assert HERE.run(["sh", "-c", "echo a; exit 3"], 5.0) == Ran(3, "a\n")
    assert HERE.run(["sleep", "5"], 0.05) == Ran(None, "")
    assert HERE.version(["no-such-distribution", "httpx"]) is not None
    assert HERE.space(Path("/no/such/folder")) is None


@pytest.mark.parametrize("name", ["proc/self/limits", "proc/meminfo"])
def test_machine_without_these_files_is_not_judged_by_them(name: str, host: Host, tmp_path: Path) -> None:
    host.examine()
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    reach = Reach(host._run, host._version, lambda _: None, lambda _: True, (3, 12))
    assert words(examine({}, root=tmp_path, reach=reach)) == []
