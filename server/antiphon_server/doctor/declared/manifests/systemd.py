"""Units and environment files of systemd."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from antiphon_server.doctor.declared.box import UNLIMITED, Box, seconds, size
from antiphon_server.doctor.declared.command_line import UNREAD_FILE, Command, recognised
from antiphon_server.doctor.declared.declared import Declared
from antiphon_server.doctor.declared.manifests.environment import Named, environment
from antiphon_server.doctor.declared.manifests.scene import Scene
from antiphon_server.doctor.declared.manifests.secrets import plain
from antiphon_server.doctor.finding import Finding, Severity

STOP_GRACE_S = 90.0
_OURS = re.compile(r"(?i)antiphon|vllm|redis|valkey")


def units(path: Path, text: str, host: str) -> Scene:
    """One service, or every instance of a template. ``host``: label of the machine it is for. Environment
    files are looked for where the unit says, and beside it, since units are often looked at before they are
    installed; the instances of a template are those that have such a file beside it."""
    service = _sections(text).get("Service", {})
    if not _OURS.search(" ".join(service.get("ExecStart", ()))):
        return Scene(path.name, Declared())
    if not path.stem.endswith("@"):
        return Scene(path.name, _service(path, service, "", host))
    instances = sorted(
        {name for line in service.get("EnvironmentFile", ()) for name in _instances(line, path)}
    )
    if not instances:
        return Scene(path.name, Declared(unread=(_unnamed(path, service, host),)))
    return Scene(path.name, sum((_service(path, service, name, host) for name in instances), Declared()))


def _unnamed(path: Path, service: Mapping[str, list[str]], host: str) -> Finding:
    """Of a template, of which no instance is known."""
    files = [line.removeprefix("-") for line in service.get("EnvironmentFile", ()) if "%i" in line]
    lacking = " or ".join(files).replace("%i", "*") or "file of theirs"
    return UNREAD_FILE.finding(
        f"{host}/{path.name}" if host else path.name,
        f"no {lacking} beside it, so its instances are not known and were not checked",
        "name a folder that 'antiphon hosts' wrote, or put the instances' environment files beside the unit",
        severity=Severity.NOTE,
    )


def _instances(line: str, path: Path) -> list[str]:
    before, marked, after = Path(line).name.partition("%i")
    if not marked:
        return []
    beside = path.parent.glob(f"{before}*{after}")
    return [each.name.removeprefix(before).removesuffix(after) for each in beside]


def _service(path: Path, service: Mapping[str, list[str]], instance: str, host: str) -> Declared:
    written: dict[str, str] = {}
    for line in service.get("Environment", ()):
        for word in shlex.split(line):
            name, _, value = word.partition("=")
            written[name] = value
    name = path.name.replace("@", f"@{instance}") if instance else path.name
    subject = f"{host}/{name}" if host else name
    files = environment(
        subject, (_named(line, instance, path) for line in service.get("EnvironmentFile", ()))
    )
    env = {**written, **files.env}
    box = Box(
        manager="systemd",
        network=host,
        node=host,
        memlock=_limit(service.get("LimitMEMLOCK", ())),
        grace=_grace(service),
    )
    command = (service.get("ExecStart") or [""])[-1].lstrip("@-+!:|").replace("%i", instance)
    words = tuple(_filled(word, env) for word in shlex.split(command))
    found = recognised(Command(subject, words, env, box, path.parent, files.unseen))
    return files.told_with(found, plain(subject, written))


def _named(line: str, instance: str, unit_path: Path) -> Named:
    name = line.removeprefix("-").replace("%i", instance)
    return Named(name, (Path(name), unit_path.parent / Path(name).name), optional=line.startswith("-"))


def _sections(text: str) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = found.setdefault(line[1:-1], {})
        elif line and not line.startswith(("#", ";")) and "=" in line:
            key, _, value = line.partition("=")
            if value.strip():
                section.setdefault(key.strip(), []).append(value.strip())
            else:
                section.pop(key.strip(), None)  # an empty one takes back what was said before
    return found


def _filled(word: str, env: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda found: env.get(found[1] or found[2], found[0]), word)


def _limit(given: list[str] | tuple[str, ...]) -> int | str | None:
    if not given:
        return None
    soft = given[-1].partition(":")[0]
    return UNLIMITED if soft in ("infinity", "-1") else size(soft)


def _grace(service: Mapping[str, list[str]]) -> float:
    for name in ("TimeoutStopSec", "TimeoutSec"):
        if name in service:
            found = seconds(service[name][-1])
            return STOP_GRACE_S if found is None else found or float("inf")
    return STOP_GRACE_S
