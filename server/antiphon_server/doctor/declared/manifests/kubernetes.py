"""Kubernetes manifests: rendered objects, all of them one fleet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon_server.doctor.declared.box import Box, size
from antiphon_server.doctor.declared.command_line import Command, recognised
from antiphon_server.doctor.declared.declared import HIDDEN, Declared, Plain
from antiphon_server.doctor.declared.manifests.compose import own_entry, versions_in
from antiphon_server.doctor.declared.manifests.scene import Scene
from antiphon_server.doctor.declared.manifests.secrets import plain

EFA_RESOURCE = "vpc.amazonaws.com/efa"
STOP_GRACE_S = 30.0
_VARIABLE = re.compile(r"\$\((\w+)\)|\$\$")


@dataclass(frozen=True, slots=True)
class _Pod:
    """``name``: kind and name of what makes it. ``labels``: its own."""

    name: str
    namespace: str
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    replicas: int


@dataclass(frozen=True, slots=True)
class _World:
    """All objects, as the pods see them."""

    maps: Mapping[tuple[str, str], Mapping[str, str]]
    outside: Sequence[Mapping[str, Any]]
    policies: Sequence[Mapping[str, Any]]
    scaled: Mapping[str, int] = field(default_factory=dict)


def kubernetes(path: Path, objects: Sequence[Mapping[str, Any]]) -> Scene:
    """One scene of everything in the file."""
    flat = list(_flat(objects))
    world = _World(
        {
            (_namespace(one), _name(one)): _texts(one.get("data"))
            for one in flat
            if one.get("kind") == "ConfigMap"
        },
        [
            one
            for one in flat
            if one.get("kind") == "Service" and _spec(one).get("type") in ("NodePort", "LoadBalancer")
        ],
        [one for one in flat if one.get("kind") == "NetworkPolicy"],
        {
            str(_spec(one).get("scaleTargetRef", {}).get("name")): int(_spec(one).get("maxReplicas") or 1)
            for one in flat
            if one.get("kind") == "HorizontalPodAutoscaler"
        },
    )
    parts = [_containers(path, pod, world) for one in flat for pod in _pods(one, world)]
    services = tuple(_labels(one) for one in flat if one.get("kind") == "Service")
    secrets = tuple(secret for one in flat if one.get("kind") == "Secret" for secret in _secrets(path, one))
    return Scene(path.name, sum(parts, Declared(services=services, plain=secrets)))


def _flat(objects: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for one in objects:
        if one.get("kind") == "List":
            yield from _flat(one.get("items") or ())
        else:
            yield one


def _pods(one: Mapping[str, Any], world: _World) -> Iterator[_Pod]:
    kind, spec, name = str(one.get("kind")), _spec(one), _name(one)
    namespace = _namespace(one)
    replicas = max(int(spec.get("replicas", 1) or 0), world.scaled.get(name, 0))
    if kind == "Pod":
        yield _Pod(name, namespace, spec, _labels(one), 1)
    elif kind == "LeaderWorkerSet":
        both = spec.get("leaderWorkerTemplate") or {}
        # Workers have no API of their own; where there is no leader's template they are leaders too.
        template = both.get("leaderTemplate") or both.get("workerTemplate") or {}
        yield _Pod(name, namespace, _spec(template), _labels(template), replicas)
    elif kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"):
        template = spec.get("template") or {}
        yield _Pod(name, namespace, _spec(template), _labels(template), replicas)


def _containers(path: Path, pod: _Pod, world: _World) -> Declared:
    found = Declared()
    for container in pod.spec.get("containers") or ():
        subject = f"{path.name}: {pod.name}/{container.get('name')}"
        env, written = _environment(container, pod, world)
        entry, command = container.get("command") or [], container.get("args") or []
        words = [*entry, *command] if entry else own_entry(str(container.get("image", "")), "", list(command))
        words = [_filled(str(word), env) for word in words]
        part = recognised(Command(subject, tuple(words), env, _box(container, pod, world), path.parent))
        found += part + Declared(plain=plain(subject, written)) if part else part
    return found


def _environment(
    container: Mapping[str, Any], pod: _Pod, world: _World
) -> tuple[dict[str, str], dict[str, str]]:
    """What is set, and what of it is written as it is."""
    env: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        reference = source.get("configMapRef") or {}
        env |= world.maps.get((pod.namespace, str(reference.get("name"))), {})
    written: dict[str, str] = {}
    for each in container.get("env") or ():
        name = str(each.get("name"))
        if "value" in each:
            written[name] = str(each["value"])
            env[name] = _filled(written[name], env)
            continue
        source = each.get("valueFrom") or {}
        config = source.get("configMapKeyRef")
        known = world.maps.get((pod.namespace, str((config or {}).get("name"))), {})
        if config and config.get("key") in known:
            env[name] = known[config["key"]]
            continue
        where: Mapping[str, Any] = next(iter(source.values()), {})
        told = where.get("fieldPath") or f"{where.get('name')}/{where.get('key')}"
        env[name] = f"{HIDDEN} {told}"
    return env, written


def _filled(text: str, env: Mapping[str, str]) -> str:
    """``$(NAME)`` filled in; a hidden value makes the whole text hidden."""
    names = [found[1] for found in _VARIABLE.finditer(text) if found[1] in env]
    hidden = next((env[name] for name in names if env[name].startswith(HIDDEN)), None)
    if hidden is not None:
        return f"{HIDDEN} {text}" if text != f"$({names[0]})" else hidden
    return _VARIABLE.sub(lambda found: "$" if found[0] == "$$" else env.get(found[1], found[0]), text)


def _box(container: Mapping[str, Any], pod: _Pod, world: _World) -> Box:
    security = container.get("securityContext") or {}
    resources = container.get("resources") or {}
    granted = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    capabilities = (security.get("capabilities") or {}).get("add") or ()
    host = bool(pod.spec.get("hostNetwork"))
    versions: dict[str, str] = versions_in("image", str(container.get("image", "")))
    outside = [one for one in world.outside if _selects(_spec(one).get("selector"), pod.labels)]
    fenced = any(
        _selects((_spec(one).get("podSelector") or {}).get("matchLabels"), pod.labels, empty=True)
        for one in world.policies
        if _namespace(one) == pod.namespace
    )
    grace = pod.spec.get("terminationGracePeriodSeconds")
    return Box(
        manager="kubernetes",
        network=pod.name,
        image=str(container.get("image")) if container.get("image") else None,
        versions=tuple(versions.items()),
        host_network=host,
        privileged=bool(security.get("privileged")),
        capabilities=frozenset(map(str, capabilities)),
        shm=_shm(container, pod),
        efa=int(granted.get(EFA_RESOURCE, 0) or 0) or _claimed(container, pod),
        huge_pages=any(str(name).startswith("hugepages-") for name in granted),
        grace=float(STOP_GRACE_S if grace is None else grace) - _pre_stop(container),
        published=tuple("0.0.0.0" for _ in outside),
        fenced=fenced,
        replicas=pod.replicas,
    )


def _claimed(container: Mapping[str, Any], pod: _Pod) -> int:
    """EFA interfaces by dynamic resource allocation, as far as a claim's name tells."""
    names = {str(each.get("name")) for each in (container.get("resources") or {}).get("claims") or ()}
    claims = pod.spec.get("resourceClaims") or ()
    return sum("efa" in str(claim).lower() for claim in claims if claim.get("name") in names)


def _shm(container: Mapping[str, Any], pod: _Pod) -> int | None:
    volumes = {str(each.get("name")): each for each in pod.spec.get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        if mount.get("mountPath") == "/dev/shm":
            volume = volumes.get(str(mount.get("name")), {})
            empty = volume.get("emptyDir")
            limit = size(empty.get("sizeLimit")) if isinstance(empty, dict) and "sizeLimit" in empty else None
            return limit if limit is not None else 1 << 62
    return None


def _pre_stop(container: Mapping[str, Any]) -> float:
    """Seconds that a pause before SIGTERM takes of the grace period."""
    hook = (container.get("lifecycle") or {}).get("preStop") or {}
    if "sleep" in hook:
        return float(hook["sleep"].get("seconds", 0))
    words = " ".join(map(str, (hook.get("exec") or {}).get("command") or ()))
    found = re.search(r"sleep\s+(\d+(?:\.\d+)?)", words)
    return float(found[1]) if found else 0.0


def _secrets(path: Path, one: Mapping[str, Any]) -> Iterator[Plain]:
    for kind in ("stringData", "data"):
        for name, value in (one.get(kind) or {}).items():
            if value:
                yield Plain(f"{path.name}: Secret {_name(one)}", f"{kind}.{name}")


def _selects(selector: Any, labels: Mapping[str, str], *, empty: bool = False) -> bool:
    if not selector:
        return empty
    return all(labels.get(key) == value for key, value in selector.items())


def _spec(one: Mapping[str, Any]) -> Mapping[str, Any]:
    spec = one.get("spec")
    return spec if isinstance(spec, dict) else {}


def _name(one: Mapping[str, Any]) -> str:
    return str((one.get("metadata") or {}).get("name"))


def _namespace(one: Mapping[str, Any]) -> str:
    return str((one.get("metadata") or {}).get("namespace") or "default")


def _labels(one: Mapping[str, Any]) -> Mapping[str, str]:
    return _texts((one.get("metadata") or {}).get("labels"))


def _texts(given: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in given.items()} if isinstance(given, dict) else {}
