"""The real router finds the engines that are deployed, by what it may ask of the API server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, serve
from deploy.kubernetes.objects import component, environment, labels, named, of_kind, templates
from deploy.kubernetes.render import Manifest
from doubles.kubernetes import ApiServer, Slice, api_server
from rig.command import running

READY = {"ready": True, "serving": True, "terminating": False}
LEAVING = {"ready": False, "serving": True, "terminating": True}


def sliced(service: Manifest, conditions: dict[str, bool], address: str, port: int) -> Slice:
    """The EndpointSlice that Kubernetes makes for a service: it has the service's labels, and more."""
    name = service["metadata"]["name"]
    (own,) = service["spec"]["ports"]
    more = {"kubernetes.io/service-name": name, "service.kubernetes.io/headless": ""}
    return {
        "metadata": {"name": f"{name}-x1y2z", "labels": {**labels(service), **more}, "resourceVersion": "0"},
        "addressType": "IPv4",
        "ports": [{"name": own["name"], "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": conditions}],
    }


def asked(target: str) -> tuple[str, str, str]:
    """Verb, group and resource of a request, as Kubernetes' authorizer sees it."""
    parts = urlsplit(target)
    _, apis, group, _, namespaces, _, resource, *name = parts.path.split("/")
    assert (apis, namespaces) == ("apis", "namespaces")
    watch = parse_qs(parts.query).get("watch") == ["1"]
    return ("get" if name else "watch" if watch else "list"), group, resource


def granted(objects: list[Manifest]) -> set[tuple[str, str, str]]:
    """What the routers' service account may do: by a role of their namespace, not of the cluster."""
    account = templates(named(objects, "Deployment", "antiphon-router"))[0]["spec"]["serviceAccountName"]
    found: set[tuple[str, str, str]] = set()
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    for binding in of_kind(objects, "RoleBinding"):
        (subject,) = binding["subjects"]
        assert subject == {"kind": "ServiceAccount", "name": account, "namespace": "antiphon"}
        for rule in named(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])["rules"]:
            found |= {(v, g, r) for v in rule["verbs"] for g in rule["apiGroups"] for r in rule["resources"]}
    return found


def told(objects: list[Manifest], api: ApiServer, account: Path) -> dict[str, str]:
    """The router's environment, but for Redis, and with the API server's double."""
    router = environment(objects, templates(named(objects, "Deployment", "antiphon-router"))[0])
    kept = {name: value for name, value in router.items() if value and "KEYS_FILE" not in name}
    (account / "namespace").write_text("antiphon")
    (account / "token").write_text("t")
    return {
        **kept,
        "ANTIPHON_STORE": "memory",
        "ANTIPHON_HOST": "127.0.0.1",
        "ANTIPHON_DISCOVER_API": api.url,
        "ANTIPHON_DISCOVER_ACCOUNT": str(account),
        "ANTIPHON_ADMIN_KEY": "admin",
        "ANTIPHON_CALIBRATE": "false",
    }


async def fleet(client: httpx.AsyncClient) -> dict[str, tuple[str, bool]]:
    """Role of each engine and whether it gets new turns, by URL."""
    reply = await client.get("/admin/workers", headers={"Authorization": "Bearer admin"})
    return {w["url"]: (w["role"], not w["draining"]) for w in reply.json()["workers"]}


async def becomes(client: httpx.AsyncClient, wanted: dict[str, tuple[str, bool]]) -> None:
    async with asyncio.timeout(20):
        while await fleet(client) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("overlay", ["gpu", "efa-multinode"])
async def test_the_router_finds_what_is_deployed_and_asks_what_it_may(
    overlays: Any, following: list[Manifest], tmp_path: Path, overlay: str
) -> None:
    objects = overlays[overlay]
    cluster = SimulatedCluster()
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(api_server())
        urls: dict[str, str] = {}
        put: dict[str, Slice] = {}
        for item in of_kind([*objects, *following], "Service"):
            name, role = item["metadata"]["name"], component(item)
            if role in ("prefill", "decode"):
                threshold = {"threshold": 0} if role == "prefill" else {}
                engine = SimulatedEngine(Settings(role=role, **threshold), cluster=cluster)  # type: ignore[arg-type]
                urls[name] = await stack.enter_async_context(serve(engine))
                port = int(urls[name].rpartition(":")[2])
                put[name] = sliced(item, READY, "127.0.0.1", port)
            else:
                put[name] = sliced(item, READY, "127.0.0.1", 9)
        for name in ("antiphon-prefill", "antiphon-decode", "antiphon-router", "antiphon-redis"):
            api.put(put[name])
        environ = told(objects, api, tmp_path)
        command = await stack.enter_async_context(running(environ=environ))
        old = {urls["antiphon-prefill"]: ("prefill", True), urls["antiphon-decode"]: ("decode", True)}
        await becomes(command.client, old)
        body = {"model": "simulated", "messages": [{"role": "user", "content": "Letters, please."}]}
        reply = await command.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        # A second generation joins; the first one's pods end.
        for name in ("antiphon-prefill-next", "antiphon-decode-next"):
            api.put(put[name])
        new = {
            urls["antiphon-prefill-next"]: ("prefill", True),
            urls["antiphon-decode-next"]: ("decode", True),
        }
        await becomes(command.client, {**old, **new})
        for name in ("antiphon-prefill", "antiphon-decode"):
            leaving = sliced(
                named(objects, "Service", name), LEAVING, "127.0.0.1", int(urls[name].rpartition(":")[2])
            )
            api.put(leaving)
        await becomes(command.client, {**{url: (role, False) for url, (role, _) in old.items()}, **new})
        assert {asked(target) for target, _ in api.requests} == granted(objects)
        assert {urlsplit(target).path.split("/")[5] for target, _ in api.requests} == {"antiphon"}


def test_what_the_router_looks_for_are_the_labels_of_the_engines_services(objects: list[Manifest]) -> None:
    router = environment(objects, templates(named(objects, "Deployment", "antiphon-router"))[0])
    for role in ("prefill", "decode"):
        wanted = dict(part.split("=") for part in router[f"ANTIPHON_DISCOVER_{role.upper()}"].split(","))
        found = [s for s in of_kind(objects, "Service") if wanted.items() <= labels(s).items()]
        assert [s["metadata"]["name"] for s in found] == [f"antiphon-{role}"]
        assert [port["name"] for port in found[0]["spec"]["ports"]] == [router["ANTIPHON_DISCOVER_PORT"]]


def test_only_routers_have_a_token(objects: list[Manifest]) -> None:
    for workload in of_kind(objects, "Deployment", "StatefulSet", "LeaderWorkerSet"):
        for template in templates(workload):
            mounted = template["spec"].get("automountServiceAccountToken", True)
            assert mounted == (component(template) == "router")


def test_the_defaults_look_where_pods_are_told() -> None:
    account = RouterSettings.model_fields["discover_account"].default
    assert account == Path("/var/run/secrets/kubernetes.io/serviceaccount")
