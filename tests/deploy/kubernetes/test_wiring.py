"""What names something in another object names what is there."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon_server.environment import ENGINE_PREFIX as PREFIX
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.stack.engine_cli import engine as engine_command
from deploy.kubernetes.conftest import Combine
from deploy.kubernetes.objects import (
    component,
    container,
    environment,
    labels,
    named,
    of_kind,
    pods,
    seconds_before_kill,
    selects,
    templates,
)
from deploy.kubernetes.render import MANIFESTS, Manifest

WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
ENGINES = ("prefill", "decode")


def selected(objects: list[Manifest], selector: Any) -> list[Manifest]:
    return [template for template in pods(objects) if selects(selector, labels(template))]


def test_every_service_finds_pods_of_one_component_by_ports_that_they_have(objects: list[Manifest]) -> None:
    for service in of_kind(objects, "Service"):
        found = selected(objects, {"matchLabels": service["spec"]["selector"]})
        assert [component(template) for template in found] == [component(service)]
        own = {port["name"]: port["containerPort"] for port in container(found[0])["ports"]}
        for port in service["spec"]["ports"]:
            assert port["port"] == own[port["targetPort"]]


def test_every_workload_selects_its_own_pods_alone(objects: list[Manifest]) -> None:
    for workload in of_kind(objects, "Deployment", "StatefulSet"):
        assert selected(objects, workload["spec"]["selector"]) == templates(workload)


def test_stateful_sets_name_their_service(objects: list[Manifest]) -> None:
    for workload in of_kind(objects, "StatefulSet"):
        assert named(objects, "Service", workload["spec"]["serviceName"])


def test_engines_services_have_no_address_of_their_own(objects: list[Manifest]) -> None:
    for role in ENGINES:
        assert named(objects, "Service", f"antiphon-{role}")["spec"]["clusterIP"] == "None"


def test_budgets_and_policies_select_pods(objects: list[Manifest]) -> None:
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert selected(objects, budget["spec"]["selector"])
    for policy in of_kind(objects, "NetworkPolicy"):
        assert selected(objects, policy["spec"]["podSelector"])


def test_every_pod_but_a_workers_is_budgeted_or_redis(objects: list[Manifest]) -> None:
    budgets = [budget["spec"]["selector"] for budget in of_kind(objects, "PodDisruptionBudget")]
    bare = [t for t in pods(objects) if not any(selects(budget, labels(t)) for budget in budgets)]
    assert {component(template) for template in bare} <= {"redis", "prefill-worker", "decode-worker"}


def test_what_pods_mount_and_read_is_there(objects: list[Manifest]) -> None:
    maps = {item["metadata"]["name"] for item in of_kind(objects, "ConfigMap")}
    for template in pods(objects):
        own = container(template)
        assert {source["configMapRef"]["name"] for source in own.get("envFrom", ())} <= maps
        volumes = {volume["name"] for volume in template["spec"].get("volumes", ())}
        assert {mount["name"] for mount in own["volumeMounts"]} <= volumes


def test_every_engine_of_both_roles_reads_the_same_settings(objects: list[Manifest]) -> None:
    engines = [template for template in pods(objects) if container(template)["name"] == "engine"]
    assert len({container(template)["envFrom"][0]["configMapRef"]["name"] for template in engines}) == 1
    assert len({container(template)["image"] for template in engines}) == 1


def test_the_routers_settings_are_settings(objects: list[Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    router = templates(named(objects, "Deployment", "antiphon-router"))[0]
    told = environment(objects, router)
    for name in told:
        assert name.removeprefix("ANTIPHON_").lower() in RouterSettings.model_fields
        monkeypatch.setenv(name, told[name])
    settings = RouterSettings()
    assert settings.port == container(router)["ports"][0]["containerPort"]
    assert settings.host == "0.0.0.0"


def test_the_store_is_the_redis_that_is_deployed(objects: list[Manifest]) -> None:
    store = environment(objects, templates(named(objects, "Deployment", "antiphon-router"))[0])[
        "ANTIPHON_STORE"
    ]
    service = named(objects, "Service", "antiphon-redis")
    assert store == f"redis://antiphon-redis:{service['spec']['ports'][0]['port']}/0"


def test_the_engines_settings_are_options_of_the_command(objects: list[Manifest]) -> None:
    known = {f"{PREFIX}{name.upper()}" for name in engine_command.__annotations__} | {f"{PREFIX}KEY"}
    for template in pods(objects):
        if container(template)["name"] == "engine":
            told = {name for name in environment(objects, template) if name.startswith(PREFIX)}
            assert told <= known
            assert told >= {
                f"{PREFIX}{name}" for name in ("PRESET", "MODEL", "HOST", "ADDRESS", "PORT", "KEY")
            }


def test_engines_listen_where_their_ports_say(objects: list[Manifest]) -> None:
    for template in pods(objects):
        if component(template) in ENGINES:
            told = environment(objects, template)
            ports = {port["name"]: str(port["containerPort"]) for port in container(template)["ports"]}
            assert ports["http"] == told[f"{PREFIX}PORT"]
            assert ports["side-channel"] == told[f"{PREFIX}SIDE_CHANNEL_PORT"]


def test_engines_are_told_their_own_number_as_address(objects: list[Manifest]) -> None:
    for template in pods(objects):
        if container(template)["name"] == "engine":
            entry = next(e for e in container(template)["env"] if e["name"] == f"{PREFIX}ADDRESS")
            assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_probes_ask_for_ports_that_are_there(objects: list[Manifest]) -> None:
    for template in pods(objects):
        own = container(template)
        names = {port["name"] for port in own.get("ports", ())}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = own.get(kind, {}).get("httpGet") or own.get(kind, {}).get("tcpSocket")
            assert asked is None or asked["port"] in names
    router = container(templates(named(objects, "Deployment", "antiphon-router"))[0])
    assert router["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert (
        router["livenessProbe"]["httpGet"]["path"] == router["startupProbe"]["httpGet"]["path"] == "/health"
    )


def test_routers_have_longer_than_their_grace(objects: list[Manifest]) -> None:
    router = templates(named(objects, "Deployment", "antiphon-router"))[0]
    grace = float(environment(objects, router)["ANTIPHON_SHUTDOWN_GRACE"])
    assert seconds_before_kill(router) >= grace + 10


def test_engines_have_longer_than_vllm_waits_for_their_requests(objects: list[Manifest]) -> None:
    for template in pods(objects):
        if component(template) in ENGINES:
            args = container(template)["args"]
            assert seconds_before_kill(template) >= int(args[args.index("--shutdown-timeout") + 1]) + 10


def test_routers_never_become_fewer_while_they_are_replaced(objects: list[Manifest]) -> None:
    spec = named(objects, "Deployment", "antiphon-router")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert spec.get("replicas", 2) >= 2


def test_applying_a_manifest_replaces_no_engine(objects: list[Manifest]) -> None:
    for workload in of_kind(objects, "StatefulSet"):
        if component(workload) in ENGINES:
            assert workload["spec"]["updateStrategy"] == {"type": "OnDelete"}
    for group in of_kind(objects, "LeaderWorkerSet"):
        rolling = group["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
        assert rolling["partition"] >= group["spec"]["replicas"]


def test_only_leaders_of_a_group_are_found_by_a_service(overlays: Any) -> None:
    objects = overlays["efa-multinode"]
    for group in of_kind(objects, "LeaderWorkerSet"):
        leader, worker = templates(group)
        services = [service["spec"]["selector"] for service in of_kind(objects, "Service")]
        assert sum(selects({"matchLabels": selector}, labels(leader)) for selector in services) == 1
        assert not any(selects({"matchLabels": selector}, labels(worker)) for selector in services)
        # The controller makes a service of the group's name: it must not be ours.
        assert group["metadata"]["name"] not in {s["metadata"]["name"] for s in of_kind(objects, "Service")}


def test_the_second_generation_shares_nothing_but_what_routers_look_for(
    overlays: Any, following: list[Manifest]
) -> None:
    first = {(item["kind"], item["metadata"]["name"]) for item in overlays["gpu"]}
    assert first.isdisjoint((item["kind"], item["metadata"]["name"]) for item in following)
    for item in of_kind([*overlays["gpu"], *following], "Service"):
        if component(item) in ENGINES:
            others = following if item in following else overlays["gpu"]
            found = selected(others, {"matchLabels": item["spec"]["selector"]})
            assert [component(template) for template in found] == [component(item)]
    for workload in of_kind(following, "StatefulSet"):
        old = selected(overlays["gpu"], workload["spec"]["selector"])
        assert old == []
        policies = [policy["spec"] for policy in of_kind(overlays["gpu"], "NetworkPolicy")]
        covered = [p for p in policies if selects(p["podSelector"], labels(templates(workload)[0]))]
        assert len(covered) == 2


def test_tenants_keys_are_mounted_where_the_router_reads_them(full: list[Manifest]) -> None:
    router = templates(named(full, "Deployment", "antiphon-router"))[0]
    mount = next(m for m in container(router)["volumeMounts"] if m["name"] == "tenants")
    assert environment(full, router)["ANTIPHON_KEYS_FILE"].startswith(f"{mount['mountPath']}/")
    assert mount["readOnly"] is True


def test_the_gateway_hashes_on_the_header_that_clients_send(full: list[Manifest]) -> None:
    from antiphon import Wire

    policy = named(full, "BackendTrafficPolicy", "antiphon")["spec"]
    (target,) = policy["targetRefs"]
    route = named(full, target["kind"], target["name"])["spec"]
    assert policy["loadBalancer"]["consistentHash"]["header"]["name"] == Wire.default.conversation_header
    (rule,) = route["rules"]
    (backend,) = rule["backendRefs"]
    service = named(full, "Service", backend["name"])
    assert backend["port"] == service["spec"]["ports"][0]["port"]
    assert [match["path"]["value"] for match in rule["matches"]] == ["/v1"]
    assert route["parentRefs"] == [{"name": named(full, "Gateway", "antiphon")["metadata"]["name"]}]


@pytest.mark.parametrize("overlay", ["efa", "efa-multinode"])
def test_huge_pages_are_asked_for_and_used(combine: Combine, overlay: str) -> None:
    objects = combine(
        namespace="antiphon", resources=[f"overlays/{overlay}"], components=["components/hugepages"]
    )
    engines = [template for template in pods(objects) if container(template)["name"] == "engine"]
    assert len(engines) == (4 if overlay == "efa-multinode" else 2)
    for template in engines:
        assert environment(objects, template)["FI_EFA_USE_HUGE_PAGE"] == "1"
        resources = container(template)["resources"]
        assert resources["requests"]["hugepages-2Mi"] == resources["limits"]["hugepages-2Mi"] == "5120Mi"


def test_what_kubernetes_cannot_overcommit_is_asked_for_as_it_is_limited(objects: list[Manifest]) -> None:
    for template in pods(objects):
        resources = container(template)["resources"]
        for name, amount in resources["requests"].items():
            if "/" in name or name.startswith("hugepages-"):
                assert resources["limits"][name] == amount


@pytest.mark.parametrize("overlay", ["gpu", "efa", "efa-multinode"])
def test_engines_ask_for_the_gpus_that_their_settings_use(overlays: Any, overlay: str) -> None:
    objects = overlays[overlay]
    for template in pods(objects):
        if container(template)["name"] == "engine":
            width = int(environment(objects, template).get(f"{PREFIX}TENSOR_PARALLEL", "1"))
            groups = of_kind(objects, "LeaderWorkerSet")
            nodes = groups[0]["spec"]["leaderWorkerTemplate"]["size"] if groups else 1
            assert int(container(template)["resources"]["limits"]["nvidia.com/gpu"]) == width // nodes


def test_redis_is_the_one_that_compose_runs(overlays: Any) -> None:
    redis = container(templates(named(overlays["cpu"], "StatefulSet", "antiphon-redis"))[0])
    compose = (MANIFESTS.parent / "compose" / "compose.yaml").read_text()
    assert f"${{REDIS_IMAGE:-{redis['image']}}}" in compose
