"""What would not work, told before anything is started. A fault names the thing, its value, the remedy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from antiphon_server.stack.command import engine_of, gpus_of, override_of
from antiphon_server.stack.models import Model
from antiphon_server.stack.ports import EnginePorts
from antiphon_server.stack.presets import PRESETS
from antiphon_server.stack.reach import routable
from antiphon_server.stack.settings import Preset, Role, StackSettings
from antiphon_server.versions import MINIMUM_NIXL, NIXL_PACKAGES, installed, numbers, text

INSTALL_NIXL = f"pip install 'nixl>={text(MINIMUM_NIXL)}'"
OWN_WORDS = frozenset({"side-channel-host", "unchecked-reuse"})
"""Checks that are told here in words of the settings, or that tests mean to break."""
OTHERS_SETTING = {
    "--kv-transfer-config": "leave it out: it is made of the settings, Override.kv_extra and failure_policy",
    "--host": "set it outside of the flags: host of one engine, address of a stack",
    "--port": "set it outside of the flags: port of one engine; a stack looks for free ones",
}


@dataclass(frozen=True, slots=True)
class Fault:
    thing: str
    value: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.thing} = {self.value}: {self.remedy}"


class ValidationError(ValueError):
    """Settings that cannot work; ``faults`` lists why."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        super().__init__("\n".join(map(str, faults)))


@dataclass(frozen=True, slots=True)
class Machine:
    """What validation asks of the machine. Versions are None where the package is missing."""

    vllm: bool
    nixl: str | None
    gpus: int
    efa_devices: int
    libfabric: bool


def survey(root: Path = Path("/")) -> Machine:
    """Look at this machine. ``root``: where its files are."""
    return Machine(
        vllm=util.find_spec("vllm") is not None,
        nixl=installed(NIXL_PACKAGES),
        gpus=len(list((root / "proc/driver/nvidia/gpus").glob("*"))),
        efa_devices=len(list((root / "sys/class/infiniband").glob("*"))),
        libfabric=_libfabric(root),
    )


def settings_faults(settings: StackSettings, environ: Mapping[str, str] = os.environ) -> list[Fault]:
    """Faults of the settings alone; no look at the machine."""
    told = [*_counts(settings), *_between_nodes(settings), *_overrides(settings)]
    # What misplaced overrides would render says nothing more.
    return (
        told
        if any(fault.thing.startswith("overrides") for fault in told)
        else [*told, *_rendered(settings, environ)]
    )


def machine_faults(settings: StackSettings, machine: Machine) -> list[Fault]:
    """What this machine lacks to run the settings."""
    faults: list[Fault] = []
    if not machine.vllm:
        faults.append(Fault("vllm", "not installed", "install it (README, Install), or use the simulator"))
    if machine.nixl is None:
        faults.append(Fault("nixl", "not installed", INSTALL_NIXL))
    elif settings.preset is Preset.EFA and numbers(machine.nixl) < MINIMUM_NIXL:
        remedy = f"LIBFABRIC hangs before {text(MINIMUM_NIXL)}: {INSTALL_NIXL}"
        faults.append(Fault("nixl", machine.nixl, remedy))
    if PRESETS[settings.preset].gpus:
        wanted = _gpus_wanted(settings)
        if machine.gpus < wanted:
            remedy = "run it where they are, lower the counts, or take preset cpu; --print shows the commands"
            faults.append(Fault("GPUs", f"{machine.gpus} of the {wanted} needed", remedy))
    if settings.preset is Preset.EFA:
        if not machine.efa_devices:
            remedy = "run on an instance with EFA interfaces, or take preset gpu; --print shows the commands"
            faults.append(Fault("EFA devices", "none in /sys/class/infiniband", remedy))
        if not machine.libfabric:
            remedy = "nixl's wheel does not carry it: install the EFA software (libfabric 1.21 or later)"
            faults.append(Fault("libfabric.so.1", "not found", remedy))
    return faults


def runnable(settings: StackSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Pass when the settings can be run here.

    Raises:
        ValidationError: with every fault found.
    """
    if faults := [*settings_faults(settings, environ), *machine_faults(settings, survey())]:
        raise ValidationError(faults)


def _counts(settings: StackSettings) -> list[Fault]:
    counts = {
        "prefill": settings.prefill,
        "decode": settings.decode,
        "tensor_parallel": settings.tensor_parallel,
        "data_parallel": settings.data_parallel,
        "kv_space": settings.kv_space,
    }
    # An engine of its own (``antiphon engine``) has neither a router nor its counterpart beside it.
    alone = not settings.router and settings.prefill + settings.decode == 1
    least = {"prefill": 0, "decode": 0} if alone else {}
    faults = [
        Fault(name, str(count), "give 1 or more")
        for name, count in counts.items()
        if count < least.get(name, 1)
    ]
    if settings.preset is Preset.CPU:  # an engine is one process there
        faults += [
            Fault(name, str(counts[name]), "use more engines on preset cpu")
            for name in ("tensor_parallel", "data_parallel")
            if counts[name] > 1
        ]
    if settings.gpus and PRESETS[settings.preset].gpus and len(settings.gpus) != _gpus_wanted(settings):
        remedy = f"name {_gpus_wanted(settings)}: tensor_parallel times data_parallel of each engine"
        faults.append(Fault("gpus", ",".join(settings.gpus), remedy))
    if not 0 < settings.port < 65536:
        faults.append(Fault("port", str(settings.port), "give one from 1 to 65535"))
    return faults


def _between_nodes(settings: StackSettings) -> list[Fault]:
    if not PRESETS[settings.preset].between_nodes:
        return []
    if settings.address is None or not routable(settings.address):
        remedy = "give this node's address as other nodes reach it (--address); NIXL agents meet there"
        return [Fault("address", settings.address or "127.0.0.1", remedy)]
    return []


def _overrides(settings: StackSettings) -> list[Fault]:
    known = {Role.PREFILL.value, Role.DECODE.value}
    known |= {name for _, name in _engines(settings)}
    faults = [
        Fault("overrides", name, f"no such engine; there are {', '.join(sorted(known))}")
        for name in settings.overrides
        if name not in known
    ]
    for name, override in settings.overrides.items():
        options = [flag.partition("=")[0] for flag in override.flags]
        faults += [
            Fault(f"overrides[{name}].flags", option, OTHERS_SETTING[option])
            for option in options
            if option in OTHERS_SETTING
        ]
    return faults


def _rendered(settings: StackSettings, environ: Mapping[str, str]) -> list[Fault]:
    """What the doctor calls an error in the commands that the settings become."""
    from antiphon_server.doctor.declared.box import Box
    from antiphon_server.doctor.declared.declared import Declared, Engine
    from antiphon_server.doctor.declared.rules import alike, efa, engine, places
    from antiphon_server.stack.flags import after_entry, read_flags

    here = Box(manager="shell", network="here", node="here")
    model = Model(settings.model, settings.model, local=False, context=None)
    fleet = Declared(
        engines=tuple(
            Engine(spec.name, spec.role, read_flags(after_entry(spec.argv)), {**environ, **spec.env}, here)
            for spec in (
                engine_of(
                    settings, model, Path(), role, int(name.rpartition("-")[2]), _apart(place), 1, place
                )
                for place, (role, name) in enumerate(_engines(settings))
            )
        )
    )
    faults: dict[tuple[str, str, str], list[str]] = {}
    for rule in (*engine.RULES, *places.RULES, *alike.RULES, *efa.RULES):
        if rule.check.word in OWN_WORDS or rule.check.severity != "error":
            continue
        thing = rule.check.thing or rule.check.word
        for found in rule.findings(fleet):
            value = found.what.removeprefix(f"{thing} ").removeprefix("is ")
            faults.setdefault((thing, value, found.remedy), []).append(found.subject)
    return [
        Fault(
            thing,
            value if len(subjects) == len(fleet.engines) else f"{value} ({', '.join(subjects)})",
            remedy,
        )
        for (thing, value, remedy), subjects in faults.items()
    ]


def _apart(place: int) -> EnginePorts:
    """Ports that no two engines share; the free ones are only looked for at the start."""
    return EnginePorts(20_000 + place, 30_000 + 100 * place)


def _engines(settings: StackSettings) -> list[tuple[Role, str]]:
    roles = ((Role.PREFILL, settings.prefill), (Role.DECODE, settings.decode))
    return [(role, f"{role.value}-{i}") for role, count in roles for i in range(count)]


def _gpus_wanted(settings: StackSettings) -> int:
    return sum(
        gpus_of(settings, override_of(settings, role, name).flags) for role, name in _engines(settings)
    )


def _libfabric(root: Path) -> bool:
    from ctypes.util import find_library

    places = ("opt/amazon/efa/lib", "opt/amazon/efa/lib64")
    installed = any((root / place / "libfabric.so.1").exists() for place in places)
    return installed or (root == Path("/") and find_library("fabric") is not None)


__all__ = ["Fault", "Machine", "ValidationError", "machine_faults", "runnable", "settings_faults", "survey"]
