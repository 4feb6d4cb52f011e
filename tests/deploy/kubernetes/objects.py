"""Ways to look at rendered objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Manifest = dict[str, Any]
COMPONENT = "app.kubernetes.io/component"


def of_kind(objects: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    """Those of some kinds."""
    return [item for item in objects if item["kind"] in kinds]


def named(objects: Iterable[Manifest], kind: str, name: str) -> Manifest:
    """The one of that kind and name."""
    return next(item for item in of_kind(objects, kind) if item["metadata"]["name"] == name)


def templates(item: Manifest) -> list[Manifest]:
    """The pod templates of a workload; none for other objects."""
    spec = item.get("spec", {})
    if item["kind"] in ("Deployment", "StatefulSet"):
        return [spec["template"]]
    if item["kind"] == "LeaderWorkerSet":
        return [
            spec["leaderWorkerTemplate"]["leaderTemplate"],
            spec["leaderWorkerTemplate"]["workerTemplate"],
        ]
    return []


def pods(objects: Iterable[Manifest]) -> Iterator[Manifest]:
    """Every pod template."""
    for item in objects:
        yield from templates(item)


def labels(item: Manifest) -> dict[str, str]:
    """Of an object or a pod template."""
    found: dict[str, str] = item["metadata"].get("labels", {})
    return found


def component(item: Manifest) -> str:
    """What a pod template is a part of."""
    return labels(item)[COMPONENT]


def container(template: Manifest) -> Manifest:
    """Its only container."""
    (only,) = template["spec"]["containers"]
    found: Manifest = only
    return found


def selects(selector: Mapping[str, Any], of: Mapping[str, str]) -> bool:
    """A label selector on some labels: Kubernetes' rules for matchLabels, In and NotIn."""
    for key, value in selector.get("matchLabels", {}).items():
        if of.get(key) != value:
            return False
    for expression in selector.get("matchExpressions", ()):
        operator, there = expression["operator"], of.get(expression["key"])
        assert operator in ("In", "NotIn"), operator
        if (there in expression["values"]) is not (operator == "In"):
            return False
    return True


def environment(objects: Iterable[Manifest], template: Manifest) -> dict[str, str]:
    """What a container is told by ConfigMaps and values; empty where a secret or the pod itself says."""
    objects = list(objects)
    own = container(template)
    found: dict[str, str] = {}
    for source in own.get("envFrom", ()):
        found |= named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for entry in own.get("env", ()):
        found[entry["name"]] = entry.get("value", "")
    return found


def seconds_before_kill(template: Manifest) -> int:
    """From SIGTERM, which comes after preStop, to SIGKILL."""
    whole: int = template["spec"]["terminationGracePeriodSeconds"]
    pause: int = (
        container(template).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    )
    return whole - pause
