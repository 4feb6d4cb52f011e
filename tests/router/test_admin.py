"""``/admin``: who may use it, and what it does to the fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from antiphon_server.simulator import Settings, SimulatedEngine, serve

KEY = {"Authorization": "Bearer hush-hush"}
KEYED = {"admin_key": "hush-hush", "calibrate": False}
CALLS = [
    ("GET", "/admin/workers"),
    ("POST", "/admin/workers"),
    ("DELETE", "/admin/workers"),
    ("POST", "/admin/workers/drain"),
    ("POST", "/admin/workers/undrain"),
    ("GET", "/admin/config"),
]


@asynccontextmanager
async def another(rig: Any) -> AsyncIterator[tuple[SimulatedEngine, str]]:
    """A decode engine beside the rig's that no router knows."""
    engine = SimulatedEngine(Settings(role="decode"), clock=rig.clock, cluster=rig.prefill[0].cluster)
    async with serve(engine) as url:
        yield engine, url


def decode(reply: httpx.Response) -> dict[str, dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    return {worker["url"]: worker for worker in reply.json()["workers"] if worker["role"] == "decode"}


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_admin_is_off_without_a_key(start: Any, method: str, path: str) -> None:
    rig = await start()
    for headers in ({}, {"Authorization": "Bearer"}, {"Authorization": "Bearer None"}):
        reply = await rig.client.request(method, path, headers=headers)
        assert reply.status_code == 404
        assert "ANTIPHON_ADMIN_KEY" in reply.text


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_wrong_key_is_refused(start: Any, method: str, path: str) -> None:
    rig = await start(router=KEYED)
    wrong = (
        "Bearer hush",
        "Bearer hush-hush2",
        "Basic hush-hush",
        "hush-hush",
        "Bearer",
        "",
        "Bearer h\xfcsh",
    )
    for value in wrong:
        headers = {"Authorization": value.encode("latin-1")}
        reply = await rig.client.request(
            method, path, headers=headers, json={"role": "decode", "url": "http://d"}
        )
        assert reply.status_code == 401, value
        assert "hush" not in reply.text
    assert len(list(rig.state.workers)) == 2


async def test_a_clients_key_is_not_the_administrators(start: Any) -> None:
    rig = await start(router={**KEYED, "api_keys": "tenant=ak-client-key-of-enough-length"})
    headers = {"Authorization": "Bearer ak-client-key-of-enough-length"}
    assert (await rig.client.get("/admin/workers", headers=headers)).status_code == 401
    assert (await rig.client.get("/admin/workers", headers=KEY)).status_code == 200


async def test_engine_is_added_drained_and_removed(start: Any, opening: Any) -> None:
    rig = await start(router=KEYED)
    (first,) = decode(await rig.client.get("/admin/workers", headers=KEY))
    async with another(rig) as (engine, url):
        named = {"role": "decode", "url": url + "/"}
        added = decode(await rig.client.post("/admin/workers", json=named, headers=KEY))
        assert added[url]["healthy"]

        async def do(what: str, url: str) -> dict[str, dict[str, Any]]:
            body = {"role": "decode", "url": url}
            return decode(await rig.client.post(f"/admin/workers/{what}", json=body, headers=KEY))

        assert (await do("drain", first))[first]["draining"]
        served = len(rig.legs(engine))
        await rig.client.post("/v1/chat/completions", json={"model": "simulated", "messages": opening})
        assert len(rig.legs(engine)) == served + 1
        assert not (await do("undrain", first))[first]["draining"]
        gone = await rig.client.request("DELETE", "/admin/workers", json=named, headers=KEY)
        assert set(decode(gone)) == {first}
    assert (await rig.ask(opening)).status == 200


async def test_engine_may_be_named_in_the_query(start: Any) -> None:
    rig = await start(decodes=2, router=KEYED)
    first, second = decode(await rig.client.get("/admin/workers", headers=KEY))
    query = {"role": "decode", "url": first}
    gone = await rig.client.delete("/admin/workers", params=query, headers=KEY)
    assert set(decode(gone)) == {second}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "complaint"),
    [
        ("POST", "/admin/workers", b"{", 400, "not JSON"),
        ("POST", "/admin/workers", b'{"role": "both", "url": "http://d"}', 400, "role"),
        ("POST", "/admin/workers", b'{"role": "decode"}', 400, "url"),
        ("POST", "/admin/workers", b'{"role": "decode", "url": "d:1"}', 400, "not http(s)://"),
        ("POST", "/admin/workers", b'{"role": "decode", "url": "http://d", "x": 1}', 400, "x"),
        (
            "POST",
            "/admin/workers/drain",
            b'{"role": "decode", "url": "http://d"}',
            404,
            "no decode engine http://d",
        ),
        ("DELETE", "/admin/workers", b'{"role": "prefill", "url": "http://d"}', 404, "no prefill engine"),
    ],
)
async def test_what_cannot_be_done_is_explained(
    start: Any, method: str, path: str, body: bytes, status: int, complaint: str
) -> None:
    rig = await start(router=KEYED)
    reply = await rig.client.request(method, path, content=body, headers=KEY)
    assert (reply.status_code, complaint in reply.json()["error"]["message"]) == (status, True), reply.text


async def test_engine_that_is_there_already_is_a_conflict(start: Any) -> None:
    rig = await start(router=KEYED)
    (first,) = decode(await rig.client.get("/admin/workers", headers=KEY))
    named = {"role": "decode", "url": first}
    assert (await rig.client.post("/admin/workers", json=named, headers=KEY)).status_code == 409


async def test_config_shows_all_but_secrets(start: Any) -> None:
    rig = await start(
        router={**KEYED, "engine_key": "engines-own", "store": "memory", "tenant_salt": "always"}
    )
    shown = await rig.client.get("/admin/config", headers=KEY)
    settings = shown.json()["settings"]
    assert (settings["engine_key"], settings["admin_key"]) == ("***", "***")
    assert settings["decode"] == [worker.url for worker in rig.state.workers.decode]
    assert "engines-own" not in shown.text
    assert "hush-hush" not in shown.text
