"""Who reaches whom: the policies let through what is used, and nothing else."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

from antiphon_server.environment import ENGINE_PREFIX as PREFIX
from deploy.kubernetes.objects import (
    component,
    container,
    environment,
    labels,
    named,
    of_kind,
    pods,
    selects,
    templates,
)
from deploy.kubernetes.render import ROOT, Manifest

Port = int
Reach = tuple[str, str]
ANYWHERE: dict[str, str] = {}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
PORTS = (
    22,
    80,
    5599,
    5600,
    5615,
    5616,
    6379,
    8000,
    8100,
    8200,
    9090,
    19999,
    20000,
    20999,
    21000,
    29501,
    50000,
)
"""Those that are used, their neighbours, and others."""
ENGINES = ("prefill", "decode", "prefill-worker", "decode-worker")


def peers(objects: list[Manifest]) -> dict[str, tuple[str, dict[str, str]]]:
    """Namespace and labels of each who may knock, by name."""
    found = {component(template): ("antiphon", labels(template)) for template in pods(objects)}
    return {**found, "prometheus": ("monitoring", PROMETHEUS), "stranger": ("elsewhere", ANYWHERE)}


def lets(policy: Any, source: tuple[str, dict[str, str]], port: Port) -> bool:
    """Whether one of a policy's rules does."""
    namespace, own = source
    for rule in policy["spec"].get("ingress", ()):
        origins = rule.get("from")
        if origins is not None and not any(from_there(origin, namespace, own) for origin in origins):
            continue
        ports = rule.get("ports")
        if ports is None or any(p["port"] <= port <= p.get("endPort", p["port"]) for p in ports):
            return True
    return False


def from_there(origin: Any, namespace: str, own: dict[str, str]) -> bool:
    """A peer of a rule: without a namespace selector, of the policy's own namespace."""
    if "namespaceSelector" in origin:
        there = selects(origin["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
    else:
        there = namespace == "antiphon"
    return there and selects(origin.get("podSelector", {}), own)


def open_ports(objects: list[Manifest], source: str, target: str) -> set[Port]:
    """Of ``PORTS``, those by which one reaches the other."""
    knocking = peers(objects)
    policies = [
        p for p in of_kind(objects, "NetworkPolicy") if selects(p["spec"]["podSelector"], knocking[target][1])
    ]
    assert policies, f"{target} is open to everybody"
    return {port for port in PORTS if any(lets(policy, knocking[source], port) for policy in policies)}


def used(objects: list[Manifest], source: str, target: str) -> set[Port]:
    """What the parts ask of each other, of ``PORTS``."""
    http = {"prefill": {8100}, "decode": {8200}}.get(target, set())
    found: set[Port] = set()
    if target == "router":
        return {8000}
    if target == "redis":
        return {6379} if source == "router" else set()
    if source == "router":
        found |= http
    if source == "prometheus" and any(of_kind(objects, "ServiceMonitor")):
        found |= http
    if source in ("prefill", "decode") and target in ("prefill", "decode"):
        # NIXL meets at the side channel, a port a rank; KV by TCP has a range of its own.
        found |= {5600, 5615, 20000, 20999}
    if source.removesuffix("-worker") == target.removesuffix("-worker") and of_kind(
        objects, "LeaderWorkerSet"
    ):
        found |= set(PORTS)  # PyTorch and NCCL choose them
    return found


def test_each_reaches_what_it_uses_and_nothing_else(objects: list[Manifest]) -> None:
    knocking = peers(objects)
    targets = [name for name in knocking if name not in ("prometheus", "stranger")]
    assert set(targets) >= {"router", "redis", "prefill", "decode"}
    for source, target in product(knocking, targets):
        got = open_ports(objects, source, target)
        assert got == used(objects, source, target), f"{source} to {target}"


def test_the_ranges_are_those_that_the_engines_are_told(objects: list[Manifest]) -> None:
    engines = [template for template in pods(objects) if component(template) in ("prefill", "decode")]
    for template in engines:
        told = environment(objects, template)
        assert told["UCX_TCP_PORT_RANGE"] == "20000-20999"
        ranks = int(told.get(f"{PREFIX}DATA_PARALLEL", "1"))
        assert int(told[f"{PREFIX}SIDE_CHANNEL_PORT"]) == 5600
        assert ranks <= 16


def test_the_doctor_asks_from_where_policies_let_it(overlays: Any) -> None:
    guide = (ROOT / "docs" / "kubernetes.md").read_text().replace("\\\n", " ")
    asking = [line for line in guide.splitlines() if "antiphon doctor" in line and "--prefill" in line]
    assert len(asking) == 1
    objects = overlays["cpu"]
    (name,) = re.findall(r"kubectl -n antiphon exec deploy/(\S+) --", asking[0])
    (router,) = templates(named(objects, "Deployment", name))
    for role, port in re.findall(r"--(prefill|decode) http://POD-IP:(\d+)", asking[0]):
        assert int(port) in open_ports(objects, component(router), role)
    told = {entry["name"] for entry in container(router)["env"]}
    assert {"ANTIPHON_ENGINE_KEY", "ANTIPHON_ADMIN_KEY"} <= told
