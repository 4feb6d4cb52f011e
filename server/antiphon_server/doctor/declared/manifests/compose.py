"""Compose files, with their variables filled in; one scene for each profile."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from antiphon_server.doctor.declared.box import UNLIMITED, Box, seconds, size
from antiphon_server.doctor.declared.command_line import UNREAD_FILE, Command, recognised
from antiphon_server.doctor.declared.declared import HIDDEN, Declared
from antiphon_server.doctor.declared.files import UnreadError, text_of
from antiphon_server.doctor.declared.manifests.environment import Named, environment
from antiphon_server.doctor.declared.manifests.interpolation import (
    MissingVariableError,
    interpolated,
    names_in,
    variables_of,
)
from antiphon_server.doctor.declared.manifests.scene import ManifestError, Scene
from antiphon_server.doctor.declared.manifests.secrets import exposed, plain
from antiphon_server.doctor.finding import Finding, Severity

STOP_GRACE_S = 10.0
STANDARD = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
OVERRIDES = tuple(name.replace("compose.", "compose.override.") for name in STANDARD)
# Without interpolation, so that keys stay in .env.
WHOLE = (
    "in its folder: docker compose --profile '*' config --no-interpolate > whole.yaml && "
    "antiphon doctor whole.yaml"
)
_OURS = re.compile(r"(?i)antiphon|vllm|redis|valkey")


def compose(path: Path, document: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Scene]:
    """A scene for each profile that serves, and before them one for what ``.env`` chooses. Where the
    environment chooses, that one alone.

    Raises:
        ManifestError: a variable is missing, or a service is no mapping.
    """
    env_file = path.parent / ".env"
    written_there: dict[str, str] = {}
    try:
        written_there = variables_of(text_of(env_file))
    except UnreadError as error:
        if not error.missing:
            raise ManifestError(f"{error}, and it fills in {path}: {error.remedy}") from None
    variables = {**written_there, **environ}
    try:
        services = interpolated(document.get("services") or {}, variables)
    except MissingVariableError as error:
        raise ManifestError(f"{path}: {error}: set it in {env_file}") from None
    if not isinstance(services, dict):
        raise ManifestError(f"{path}: services is no mapping of mappings")
    services = {name: one for name, one in services.items() if one is not None}  # taken back by !reset
    written = document["services"]
    found = {name: _found(path, name, one, written[name]) for name, one in services.items()}
    services = {name: one for name, one in services.items() if isinstance(one, dict)}
    of_profile: dict[str, Declared] = {}
    for name, one in services.items():
        for profile in map(str, one.get("profiles") or ()):
            of_profile[profile] = of_profile.get(profile, Declared()) + found[name]
    serving = [profile for profile, all_of in of_profile.items() if all_of.engines or all_of.routers]
    # What serves nothing by itself, such as Redis, runs beside any of the others.
    beside = frozenset(of_profile) - frozenset(serving)
    chosen = _profiles(variables)
    scenes = [frozenset({profile}) for profile in sorted(serving)] or [frozenset[str]()]
    if chosen & frozenset(serving):
        scenes.insert(0, chosen - beside)
    told = _profiles(environ)
    if told and told != {"*"}:
        scenes, beside = [told], frozenset()
    ours = names_in([written[name] for name, one in found.items() if one])
    filling = {name: value for name, value in written_there.items() if name in ours}
    of_all = Declared(
        plain=exposed(path.name, env_file, filling), unread=tuple(_left_out(path, document, variables))
    )
    for active in dict.fromkeys(scenes):
        parts = [
            found[name]
            for name, one in services.items()
            if not one.get("profiles") or (active | beside) & set(map(str, one["profiles"]))
        ]
        whole = sum(parts, Declared())
        if told and not whole and any(found.values()):
            what = f"COMPOSE_PROFILES = {','.join(sorted(told))} chooses none of its engines and routers"
            remedy = f"set it to one of {', '.join(sorted(serving))}, or unset it"
            whole += Declared(unread=(UNREAD_FILE.finding(path.name, what, remedy, severity=Severity.NOTE),))
        named = f"{path.name} ({', '.join(sorted(active))})" if active else path.name
        yield Scene(named, whole + of_all, joins=False)


def _profiles(variables: Mapping[str, str]) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, variables.get("COMPOSE_PROFILES", "").split(","))))


def merged_into(path: Path) -> Path | None:
    """The compose file beside an override file, which Compose merges it into; None: it is no such file."""
    if path.name not in OVERRIDES:
        return None
    beside = (path.with_name(name) for name in STANDARD)
    return next((each for each in beside if each.is_file()), None)


def _left_out(path: Path, document: Mapping[str, Any], variables: Mapping[str, str]) -> Iterator[Finding]:
    """What Compose makes part of the file, and is not followed here."""
    if several := variables.get("COMPOSE_FILE"):
        names = [Path(name).name for name in several.split(variables.get("COMPOSE_PATH_SEPARATOR", ":"))]
        others = [name for name in names if name != path.name] if path.name in names else []
    else:
        beside = path.name in STANDARD
        others = [name for name in OVERRIDES if beside and path.with_name(name).is_file()]
    extending = [
        name
        for name, one in document["services"].items()
        if isinstance(one, dict) and one.get("extends") is not None
    ]
    found = [f"{name} is merged by Compose and is not read here" for name in others]
    found += ["include: Compose reads more files, which are not read here"] if document.get("include") else []
    found += [f"extends of {', '.join(extending)} is not followed here"] if extending else []
    for what in found:
        yield UNREAD_FILE.finding(path.name, what, WHOLE)


def _found(path: Path, name: str, one: Any, written: Any) -> Declared:
    """What a service runs of ours. One that runs something else may be of any form."""
    try:
        if not isinstance(one, dict):
            raise TypeError("it is no mapping")
        return _service(path, name, one, written)
    except ManifestError:
        raise
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        if not _OURS.search(str(one)):
            return Declared()
        raise ManifestError(
            f"{path}: service {name} is not of its form ({error}): 'docker compose config' tells more"
        ) from error


def _service(path: Path, name: str, one: Mapping[str, Any], written: Mapping[str, Any]) -> Declared:
    subject = f"{path.name}: {name}"
    files = environment(subject, _files(path, one))
    env = {**files.env, **_mapping(one.get("environment"))}
    words = tuple(_words(one))
    found = recognised(Command(subject, words, env, _box(name, one), path.parent, files.unseen))
    return files.told_with(found, plain(subject, _mapping(written.get("environment"))))


def _words(one: Mapping[str, Any]) -> list[str]:
    """Entry point and command; of images that have an entry point of their own, what that is."""
    entry, command = _list(one.get("entrypoint")), _list(one.get("command"))
    if entry:
        return entry + command
    build = one.get("build")
    target = build.get("target", "") if isinstance(build, dict) else ""
    return own_entry(str(one.get("image", "")), str(target), command)


def own_entry(image: str, target: str, command: list[str]) -> list[str]:
    """What a container of the image runs, as far as images of engines, routers and stores are known."""
    name = PurePosixPath(image.partition("@")[0]).name.partition(":")[0]
    ours = "antiphon" in image or bool(target)
    if ours and command[:1] in (["prefill"], ["decode"]):
        return ["antiphon", "engine", *command]
    if ours and "router" in (target or name) and (not command or command[0].startswith("-")):
        return ["antiphon", "router", *command]
    if name.startswith("vllm-openai") and command[:1] not in (["vllm"], ["python"], ["python3"]):
        return ["vllm", "serve", *command]
    if name in ("redis", "valkey") and (not command or command[0].startswith("-")):
        return [f"{name}-server", *command]
    return command


def _box(name: str, one: Mapping[str, Any]) -> Box:
    host = one.get("network_mode") == "host"
    deploy = one.get("deploy") if isinstance(one.get("deploy"), dict) else {}
    devices = [str(each) for each in one.get("devices") or ()]
    grace = seconds(one["stop_grace_period"]) if "stop_grace_period" in one else STOP_GRACE_S
    return Box(
        manager="compose",
        network="host" if host else name,
        node="host",
        image=str(one["image"]) if one.get("image") else None,
        versions=_versions(one),
        host_network=host,
        privileged=_true(one.get("privileged")),
        capabilities=frozenset(str(each).removeprefix("CAP_") for each in one.get("cap_add") or ()),
        memlock=_memlock(one.get("ulimits")),
        shm=_shm(one),
        efa=sum("/dev/infiniband" in device for device in devices),
        huge_pages=any("hugepages" in str(each) for each in one.get("volumes") or ()),
        grace=grace,
        published=tuple(_published(one)),
        replicas=int((deploy or {}).get("replicas") or one.get("scale") or 1),
    )


def _versions(one: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    build = one.get("build")
    arguments = _mapping(build.get("args")) if isinstance(build, dict) else {}
    found: dict[str, str] = {}
    for key, value in [("image", str(one.get("image", ""))), *arguments.items()]:
        found |= versions_in(key, value)
    return tuple(found.items())


def versions_in(key: str, value: str) -> dict[str, str]:
    """Versions of vLLM and nixl that an image's tag or a build argument tells."""
    tag = re.search(r"vllm[\w./-]*:v?(\d+\.\d+(?:\.\d+)?)", value)
    if tag is not None:
        return {"vllm": tag[1]}
    named = re.fullmatch(r"(VLLM|NIXL)_VERSION", key)
    if named is not None and value:
        return {named[1].lower(): value.removeprefix("v")}
    return {}


def _shm(one: Mapping[str, Any]) -> int | None:
    if one.get("ipc") == "host":
        return 1 << 62
    mounted = [str(each) for each in one.get("volumes") or () if "/dev/shm" in str(each)]
    mounted += [str(each) for each in one.get("tmpfs") or () if str(each).startswith("/dev/shm")]
    return 1 << 62 if mounted else size(one["shm_size"]) if "shm_size" in one else None


def _memlock(limits: Any) -> int | str | None:
    limit = limits.get("memlock") if isinstance(limits, dict) else None
    if isinstance(limit, dict):
        limit = min(
            (limit.get("soft", -1), limit.get("hard", -1)), key=lambda each: (int(each) < 0, int(each))
        )
    if limit is None:
        return None
    return UNLIMITED if int(limit) < 0 else int(limit)


def _published(one: Mapping[str, Any]) -> Iterator[str]:
    for each in one.get("ports") or ():
        if isinstance(each, dict):
            yield str(each.get("host_ip") or "0.0.0.0")
            continue
        parts = str(each).rsplit(":", 2)
        yield parts[0].strip("[]") if len(parts) == 3 else "0.0.0.0"


def _files(path: Path, one: Mapping[str, Any]) -> Iterator[Named]:
    files = one.get("env_file") or ()
    for each in [files] if isinstance(files, str | dict) else files:
        given = each if isinstance(each, dict) else {"path": each}
        name = str(given["path"])
        yield Named(name, (path.parent / name,), optional=not _true(given.get("required", True)))


def _mapping(given: Any) -> dict[str, str]:
    """``{NAME: value}`` or ``[NAME=value]``. A name without a value is taken from where it is started."""
    if isinstance(given, list):
        pairs = [str(each).partition("=") for each in given]
        return {
            name: value if equals else os.environ.get(name, f"{HIDDEN} {name}")
            for name, equals, value in pairs
        }
    if not isinstance(given, dict):
        return {}
    return {
        str(name): f"{HIDDEN} {name}" if value is None else _scalar(value) for name, value in given.items()
    }


def _scalar(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _list(given: Any) -> list[str]:
    return shlex.split(given) if isinstance(given, str) else [str(each) for each in given or ()]


def _true(given: Any) -> bool:
    return given is True or str(given).lower() == "true"
