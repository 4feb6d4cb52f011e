"""Engines found by Kubernetes' EndpointSlices, over a double of its API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.fleet.discovery import Cluster, Discovery
from antiphon_server.router.fleet.slices import Change, changes, engines_of, known
from antiphon_server.router.fleet.workers import Role, Workers
from antiphon_server.router.upstream.upstream import Timeouts, Upstream
from antiphon_server.simulator import Settings, SimulatedEngine, serve
from doubles.kubernetes import ApiServer, Slice, api_server, endpoint_slice

READY = {"ready": True, "serving": True, "terminating": False}
STARTING = {"ready": False, "serving": False, "terminating": False}
LEAVING = {"ready": False, "serving": True, "terminating": True}
DECODE = {"app": "vllm", "role": "decode"}
PREFILL = {"app": "vllm", "role": "prefill"}


def slice_of(
    endpoints: dict[str, dict[str, bool]], name: str = "d", labels: Any = None, port: int = 1
) -> Slice:
    return endpoint_slice(name, endpoints, labels=labels or DECODE, port=port)


@dataclass
class Scene:
    api: ApiServer
    workers: Workers

    def fleet(self, role: Role = "decode") -> dict[str, bool]:
        """Whether each engine is draining, by its URL without the scheme."""
        return {w.url.removeprefix("http://"): w.draining for w in self.workers.of(role)}


@asynccontextmanager
async def scene(account: Path, *, decode: list[str] | None = None, **settings: Any) -> AsyncIterator[Scene]:
    """Addresses are of this host, where nobody listens on port 1."""
    (account / "token").write_text("first-token\n")
    (account / "namespace").write_text("models")
    async with api_server() as api:
        upstream = Upstream(Timeouts(1.0, 1.0, 1.0))
        workers = Workers([], decode or [], upstream, interval=60.0, timeout=1.0)
        given = {"discover_prefill": "app=vllm,role=prefill", "discover_decode": "role=decode"}
        told = RouterSettings(
            **{
                **given,
                "discover_port": "http",
                "discover_api": api.url,
                "discover_account": account,
                **settings,
            }
        )
        discovery = Discovery(told, workers, pause=0.01, longest=0.05)
        await workers.start()
        await discovery.start()
        try:
            yield Scene(api, workers)
        finally:
            await discovery.stop()
            await workers.stop()
            await upstream.close()


async def test_engines_come_become_unready_return_and_go(tmp_path: Path, settled: Any) -> None:
    async with scene(tmp_path) as it:
        await settled(lambda: it.api.watching == 2)
        it.api.put(slice_of({"127.0.0.2": READY, "127.0.0.3": READY, "127.0.0.4": STARTING}))
        it.api.put(slice_of({"127.0.1.2": READY}, "p", PREFILL))
        await settled(lambda: len(it.fleet()) == 2 and it.fleet("prefill"))
        assert it.fleet() == {"127.0.0.2:1": False, "127.0.0.3:1": False}
        assert it.fleet("prefill") == {"127.0.1.2:1": False}
        it.api.put(slice_of({"127.0.0.2": LEAVING, "127.0.0.3": STARTING, "127.0.0.4": READY}))
        await settled(lambda: len(it.fleet()) == 3)
        assert it.fleet() == {"127.0.0.2:1": True, "127.0.0.3:1": True, "127.0.0.4:1": False}
        it.api.put(slice_of({"127.0.0.3": READY, "127.0.0.4": READY}))
        await settled(lambda: it.fleet() == {"127.0.0.3:1": False, "127.0.0.4:1": False})
        it.api.delete("d")
        await settled(lambda: not it.fleet())
        assert it.fleet("prefill")


async def test_slices_that_are_there_at_start_are_listed(tmp_path: Path, settled: Any) -> None:
    async with api_server() as api:
        api.put(slice_of({"127.0.0.2": READY}))
        async with scene(tmp_path, discover_api=api.url) as it:
            await settled(lambda: it.fleet() == {"127.0.0.2:1": False})


async def test_expired_version_lists_again(tmp_path: Path, settled: Any) -> None:
    async with scene(tmp_path) as it:
        it.api.put(slice_of({"127.0.0.2": READY, "127.0.0.3": READY}))
        await settled(lambda: len(it.fleet()) == 2 and it.api.watching == 2)
        it.api.forget(slice_of({"127.0.0.3": READY, "127.0.0.4": READY}))
        await settled(lambda: set(it.fleet()) == {"127.0.0.3:1", "127.0.0.4:1"})


async def test_version_that_is_refused_lists_again(tmp_path: Path, settled: Any) -> None:
    async with scene(tmp_path) as it:
        await settled(lambda: it.api.watching == 2)
        lists = it.api.lists
        it.api.forget()
        it.api.cut()
        await settled(lambda: it.api.lists >= lists + 2 and it.api.watching == 2)


async def test_broken_watch_is_taken_up_again(tmp_path: Path, settled: Any) -> None:
    async with scene(tmp_path) as it:
        it.api.put(slice_of({"127.0.0.2": READY}))
        await settled(lambda: it.fleet() and it.api.watching == 2)
        it.api.cut()
        it.api.put(slice_of({"127.0.0.2": LEAVING, "127.0.0.3": READY}))
        await settled(lambda: it.fleet() == {"127.0.0.2:1": True, "127.0.0.3:1": False})


async def test_watch_that_ended_goes_on_where_it_was(tmp_path: Path, settled: Any) -> None:
    async with scene(tmp_path) as it:
        await settled(lambda: it.api.watching == 2)
        it.api.put(slice_of({"127.0.0.2": READY}))
        version = it.api.bookmark()
        await settled(lambda: it.fleet())
        lists = it.api.lists
        it.api.end()
        await settled(lambda: it.api.watching == 2)
        it.api.put(slice_of({"127.0.0.2": READY, "127.0.0.3": READY}))
        await settled(lambda: len(it.fleet()) == 2)
        assert it.api.lists == lists
        assert f"resourceVersion={version}" in it.api.requests[-1][0] + it.api.requests[-2][0]


async def test_engines_stay_while_the_api_server_refuses(tmp_path: Path, settled: Any, caplog: Any) -> None:
    async with scene(tmp_path) as it:
        it.api.put(slice_of({"127.0.0.2": READY}))
        await settled(lambda: it.fleet() and it.api.watching == 2)
        it.api.refuse = 403
        it.api.cut()
        told = "let the router's service account list and watch endpointslices in models"
        await settled(lambda: told in [getattr(record, "remedy", None) for record in caplog.records])
        assert it.fleet() == {"127.0.0.2:1": False}
        it.api.refuse = None
        it.api.put(slice_of({"127.0.0.3": READY}))
        await settled(lambda: it.fleet() == {"127.0.0.3:1": False})


async def test_engines_named_by_flags_are_not_discoverys(tmp_path: Path, settled: Any) -> None:
    async with scene(tmp_path, decode=["http://127.0.0.9:1"]) as it:
        it.api.put(slice_of({"127.0.0.2": READY}))
        await settled(lambda: len(it.fleet()) == 2 and it.api.watching == 2)
        it.api.delete("d")
        await settled(lambda: it.fleet() == {"127.0.0.9:1": False})


async def test_engine_named_by_flags_stays_though_its_pod_is_no_longer_listed(
    tmp_path: Path, settled: Any
) -> None:
    async with scene(tmp_path, decode=["http://127.0.0.2:1"]) as it:
        it.api.put(slice_of({"127.0.0.2": READY, "127.0.0.3": READY}))
        await settled(lambda: len(it.fleet()) == 2 and it.api.watching == 2)
        it.api.put(slice_of({"127.0.0.2": {"ready": False}, "127.0.0.4": READY}))
        await settled(lambda: it.fleet() == {"127.0.0.2:1": False, "127.0.0.4:1": False})
        it.api.delete("d")
        await settled(lambda: it.fleet() == {"127.0.0.2:1": False})


async def test_engine_that_an_administrator_drained_stays_so(tmp_path: Path, settled: Any) -> None:
    async with scene(tmp_path) as it:
        it.api.put(slice_of({"127.0.0.2": READY}))
        await settled(lambda: it.fleet() and it.api.watching == 2)
        it.workers.drain("decode", "http://127.0.0.2:1")
        it.api.put(slice_of({"127.0.0.2": READY, "127.0.0.3": READY}))
        await settled(lambda: len(it.fleet()) == 2)
        assert it.fleet()["127.0.0.2:1"]


async def test_api_server_is_asked_as_the_service_account(tmp_path: Path, settled: Any) -> None:
    async with scene(tmp_path) as it:
        await settled(lambda: it.api.watching == 2)
        target, headers = it.api.requests[0]
        assert target.startswith("/apis/discovery.k8s.io/v1/namespaces/models/endpointslices?labelSelector=")
        assert headers["authorization"] == "Bearer first-token"
        (tmp_path / "token").write_text("second-token")
        it.api.cut()
        await settled(lambda: it.api.requests[-1][1]["authorization"] == "Bearer second-token")


async def test_router_serves_engines_that_it_found(
    start: Any, settled: Any, opening: Any, tmp_path: Path
) -> None:
    (tmp_path / "namespace").write_text("models")
    async with api_server() as api:
        discover = {"discover_decode": "role=decode", "discover_api": api.url, "discover_account": tmp_path}
        rig = await start(router={**discover, "calibrate": False})
        static = rig.state.workers.decode[0].url
        engine = SimulatedEngine(Settings(role="decode"), clock=rig.clock, cluster=rig.prefill[0].cluster)
        async with serve(engine) as found:
            host, port = found.removeprefix("http://").split(":")
            api.put({**slice_of({host: READY}), "ports": [{"name": "http", "port": int(port)}]})
            await settled(lambda: [w.url for w in rig.state.workers.decode if w.healthy] == [static, found])
            rig.state.workers.drain("decode", static)
            await rig.ask(opening)
            assert len(rig.legs(engine)) == 1


@pytest.mark.parametrize(
    ("port", "expected"),
    [("http", {"http://1.1.1.1:8000": True}), ("81", {"http://1.1.1.1:81": True}), ("none", {}), (None, {})],
)
def test_port_is_named_numbered_or_the_only_one(port: str | None, expected: dict[str, bool]) -> None:
    assert engines_of([slice_of({"1.1.1.1": READY}, port=8000)], port, "http") == expected


def test_only_port_needs_no_name() -> None:
    item = {**slice_of({"1.1.1.1": READY}), "ports": [{"port": 8000}]}
    assert engines_of([item], None, "https") == {"https://1.1.1.1:8000": True}


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [(READY, True), (STARTING, False), (LEAVING, False), ({}, True), (None, True), ({"ready": None}, True)],
)
def test_unknown_readiness_is_ready(conditions: Any, ready: bool) -> None:
    item = slice_of({"1.1.1.1": conditions})
    assert engines_of([item], "http", "http") == {"http://1.1.1.1:1": ready}


def test_address_in_two_slices_is_ready_if_one_says_so() -> None:
    slices = [slice_of({"1.1.1.1": STARTING}), slice_of({"1.1.1.1": READY}, "e"), slice_of({}, "f")]
    assert engines_of(slices, "http", "http") == {"http://1.1.1.1:1": True}
    assert engines_of(slices[::-1], "http", "http") == {"http://1.1.1.1:1": True}


def test_ipv6_and_empty_slices() -> None:
    item = {**slice_of({"fd00::1": READY}), "addressType": "IPv6"}
    empty = {**slice_of({}), "endpoints": None, "ports": None}
    assert engines_of([item, empty], "http", "http") == {"http://[fd00::1]:1": True}


def test_changes_add_before_they_remove() -> None:
    before = {"a": True, "b": True, "c": False}
    after = {"b": False, "c": True, "d": True, "e": False}
    assert changes(before, after) == [
        Change("drain", "b"),
        Change("undrain", "c"),
        Change("add", "d"),
        Change("remove", "a"),
    ]
    assert known(before, after) == {"b": False, "c": True, "d": True}


def test_place_of_the_api_server_is_told_by_the_pod(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("models\n")
    settings = RouterSettings(discover_decode="role=decode", discover_account=tmp_path)
    pod = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    cluster = Cluster.of(settings, pod)
    assert (cluster.api, cluster.namespace) == ("https://[fd00::1]:6443", "models")
    with pytest.raises(ValueError, match="discover_api"):
        Cluster.of(settings, {})
    with pytest.raises(ValueError, match="discover_namespace"):
        Cluster.of(settings.model_copy(update={"discover_account": tmp_path / "none"}), pod)
