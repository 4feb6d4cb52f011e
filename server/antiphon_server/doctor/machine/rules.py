"""What a machine lacks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from antiphon_server.doctor.declared.rules.efa import hides_efa
from antiphon_server.doctor.finding import Check, Fact, Finding
from antiphon_server.doctor.machine import checks
from antiphon_server.doctor.machine.facts import MachineFacts
from antiphon_server.engine import support
from antiphon_server.stack.settings import Preset, StackSettings
from antiphon_server.stack.validate import machine_faults
from antiphon_server.versions import numbers

SUBJECT = "this machine"
GIB = 1024**3
LEAST_PYTHON = (3, 11)
LEAST_LIBFABRIC = (1, 21)
LEAST_SHM = {Preset.CPU: 1 * GIB, Preset.GPU: 4 * GIB, Preset.EFA: 4 * GIB}
LEAST_OPEN_FILES = 4096

_CHECK_OF: dict[str, Check] = {
    "vllm": checks.VLLM,
    "nixl": checks.NIXL,
    "GPUs": checks.GPUS,
    "EFA devices": checks.EFA_DEVICES,
    "libfabric.so.1": checks.LIBFABRIC,
}
"""What ``antiphon up`` refuses to start on, by its word."""

Rule = Callable[[MachineFacts], Iterator[Finding]]


def findings(seen: MachineFacts) -> Iterator[Finding]:
    """What all rules find."""
    for rule in RULES:
        yield from rule(seen)


def facts(seen: MachineFacts) -> Iterator[Fact]:
    """What is worth a line although nothing is wrong with it."""
    values = {
        "looked at as": f"preset {seen.preset}",
        "python": ".".join(map(str, seen.python)),
        "vLLM": seen.vllm,
        "NIXL": seen.survey.nixl,
        "GPUs": str(seen.survey.gpus) if seen.survey.gpus else None,
        "EFA interfaces": f"{len(seen.devices)} ({', '.join(seen.devices)})" if seen.devices else None,
        "libfabric": seen.libfabric,
        "/dev/shm": size(seen.shm) if seen.shm is not None else None,
    }
    return (Fact(SUBJECT, name, value) for name, value in values.items() if value is not None)


def size(number: float) -> str:
    """Bytes, for people."""
    for unit, factor in (("GiB", GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number:.0f} bytes"


def _starts(seen: MachineFacts) -> Iterator[Finding]:
    one = StackSettings(preset=seen.preset, prefill=1, decode=0)
    for fault in machine_faults(one, seen.survey):
        yield _CHECK_OF[fault.thing].finding(SUBJECT, f"{fault.thing}: {fault.value}", fault.remedy)


def _versions(seen: MachineFacts) -> Iterator[Finding]:
    if seen.python < LEAST_PYTHON:
        what = f"Python {'.'.join(map(str, seen.python))}"
        yield checks.PYTHON.finding(SUBJECT, what, "use Python 3.11 or later")
    if seen.vllm is not None and (remedy := too_old(seen.vllm)):
        yield checks.VLLM.finding(SUBJECT, f"vLLM {seen.vllm}", remedy)


def too_old(vllm: str) -> str | None:
    """What to do about a vLLM that exact reuse cannot run on; None where it can."""
    try:
        support.require(vllm, reuse_flag=True)
    except support.UnsupportedEngineError as error:
        return str(error)
    return None


def _efa(seen: MachineFacts) -> Iterator[Finding]:
    if seen.preset is not Preset.EFA:
        return
    if len(seen.device_files) < len(seen.devices):
        what = f"{len(seen.device_files)} of {len(seen.devices)} device files /dev/infiniband/uverbs*"
        remedy = (
            "pass every one of them into the container (--device, or the device plug-in); on a host, load efa"
        )
        yield checks.EFA_NODES.finding(SUBJECT, what, remedy)
    if seen.libfabric is not None and numbers(seen.libfabric) < LEAST_LIBFABRIC:
        what = f"libfabric {seen.libfabric}"
        yield checks.LIBFABRIC.finding(
            SUBJECT, what, "install the EFA software anew: 1.21 or later is needed"
        )
    if seen.provider is not None and seen.provider.code is None:
        remedy = "see dmesg for the efa driver; a reboot may be needed"
        yield checks.PROVIDER.finding(SUBJECT, "fi_info -p efa -t FI_EP_RDM does not end", remedy)
    elif seen.provider is not None and (seen.provider.code or "provider: efa" not in seen.provider.output):
        said = seen.provider.output.strip().splitlines()[-1:] or ["nothing"]
        remedy = "install the EFA software, and give the process the device files and unlimited locked memory"
        yield checks.PROVIDER.finding(SUBJECT, f"fi_info -p efa -t FI_EP_RDM says: {said[0]}", remedy)
    if seen.memlock is not None and seen.memlock != float("inf"):
        remedy = "ulimit -l unlimited; LimitMEMLOCK=infinity (systemd); --ulimit memlock=-1 (containers)"
        yield checks.MEMLOCK.finding(SUBJECT, f"locked memory: {size(seen.memlock)} at most", remedy)
    if seen.environ.get("FI_EFA_USE_HUGE_PAGE") == "1" and not seen.huge_pages:
        remedy = "reserve some (sysctl vm.nr_hugepages=5128), or do not set it"
        yield checks.HUGE_PAGES.finding(SUBJECT, "FI_EFA_USE_HUGE_PAGE = 1, no huge page is free", remedy)
    interface = seen.environ.get("NCCL_SOCKET_IFNAME", "")
    if hides_efa(interface):
        remedy = "set it to '^lo,docker,veth', or unset it"
        yield checks.INTERFACES.finding(SUBJECT, f"NCCL_SOCKET_IFNAME = {interface}", remedy)


def _limits(seen: MachineFacts) -> Iterator[Finding]:
    least = LEAST_SHM[seen.preset]
    if seen.shm is not None and seen.shm < least:
        remedy = f"give it {size(least)} or more: --shm-size, or an emptyDir of medium Memory at /dev/shm"
        yield checks.SHM.finding(SUBJECT, f"/dev/shm: {size(seen.shm)}", remedy)
    if seen.open_files is not None and seen.open_files < LEAST_OPEN_FILES:
        remedy = "ulimit -n 65536; LimitNOFILE=65536 (systemd); --ulimit nofile=65536 (containers)"
        yield checks.OPEN_FILES.finding(SUBJECT, f"open files: {seen.open_files:.0f} at most", remedy)
    for port in seen.taken:
        remedy = "stop what listens there (ss -ltnp), or name another port"
        yield checks.PORTS.finding(SUBJECT, f"port {port} is taken", remedy)


RULES: tuple[Rule, ...] = (_versions, _starts, _efa, _limits)
