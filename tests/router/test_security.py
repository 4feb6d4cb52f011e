"""What must not cross: keys, tenants, conversations, salts, other engines' memory."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import pytest

from antiphon_server.router.logs import JsonFormatter

Message = dict[str, Any]
KEYS = "acme=client-key-of-acme,birch=client-key-of-birch"
ACME = {"authorization": "Bearer client-key-of-acme"}
BIRCH = {"authorization": "Bearer client-key-of-birch"}
ENGINE = "engine-key"
CLOSED = {
    "prefill": {"api_key": ENGINE},
    "decode": {"api_key": ENGINE},
    "router": {"engine_key": ENGINE, "api_keys": KEYS, "salt_secret": "secret-of-salts"},
}
SECRETS = ("client-key-of-acme", "client-key-of-birch", ENGINE, "secret-of-salts", "key-of-metrics")
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}


def with_router(**settings: Any) -> dict[str, Any]:
    return CLOSED | {"router": CLOSED["router"] | settings}


def sent_to_engines(rig: Any) -> list[Any]:
    return [received for engine in (*rig.prefill, *rig.decode) for received in engine.requests]


async def test_no_secret_is_logged(
    start: Any, opening: list[Message], caplog: pytest.LogCaptureFixture, fault: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("uvicorn", "uvicorn.error", "antiphon_server"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    rig = await start(**with_router(metrics_key="key-of-metrics"))
    first = await rig.ask(opening, conversation="c", headers=ACME)
    await rig.ask([*opening, first.message, FOLLOW], conversation="c", headers=ACME, stream=True)
    for headers in ({}, {"x-api-key": "client-key-of-nobody"}, BIRCH | {"content-encoding": "gzip"}):
        await rig.client.post("/v1/chat/completions", json={"messages": opening}, headers=headers)
    await rig.client.get("/metrics", headers={"authorization": "Bearer key-of-metrics"})
    rig.prefill[0].faults.add(fault(kind="status", times=9))
    await rig.ask(opening, headers=BIRCH, check=False)
    rig.prefill[0].faults.clear()
    rig.prefill[0].faults.add(fault(kind="status", code=401, times=9))
    await rig.ask(opening, headers=BIRCH, check=False)
    rig.prefill[0].faults.clear()
    await rig.kill(rig.decode[0])
    await rig.ask(opening, headers=BIRCH, check=False)
    assert caplog.records
    written = "\n".join(JsonFormatter().format(record) for record in caplog.records)
    for secret in (*SECRETS, "client-key-of-nobody"):
        assert secret not in written
    assert opening[-1]["content"] not in written


async def test_settings_do_not_show_their_secrets(start: Any) -> None:
    rig = await start(**with_router(metrics_key="key-of-metrics"))
    shown = repr(rig.state.settings) + str(rig.state.settings.model_dump()) + repr(rig.state.tenants.__dict__)
    for secret in SECRETS[:2] + SECRETS[4:]:
        assert secret not in shown


async def test_clients_credentials_reach_no_engine(start: Any, opening: list[Message]) -> None:
    rig = await start(**CLOSED)
    headers = ACME | {"x-api-key": "client-key-of-acme", "cookie": "client-cookie", "x-antiphon-tenant": "t"}
    for stream in (False, True):
        await rig.ask(opening, conversation="c", headers=headers, stream=stream)
    await rig.client.get("/v1/models", headers=headers)
    await rig.client.post("/tokenize", json={"model": "simulated", "prompt": "abc"}, headers=headers)
    seen = sent_to_engines(rig)
    assert seen
    for received in seen:
        told = json.dumps([dict(received.headers), received.body])
        assert "client-key" not in told
        assert "client-cookie" not in told
        assert "x-antiphon-tenant" not in told.lower()


async def test_engines_key_reaches_no_client(start: Any, opening: list[Message], fault: Any) -> None:
    rig = await start(**CLOSED)
    replies = [
        (await rig.ask(opening, conversation="c", headers=ACME, stream=stream)) for stream in (False, True)
    ]
    got = [(dict(reply.headers), reply.raw) for reply in replies]
    for path in ("/v1/models", "/health", "/ready", "/metrics", "/v1/conversations/c"):
        reply = await rig.client.get(path, headers=ACME)
        got.append((dict(reply.headers), reply.content))
    for engine in (*rig.prefill, *rig.decode):
        engine.faults.add(fault(kind="status", code=401, times=9))
    reply = await rig.client.post(
        "/v1/chat/completions", json={"model": "simulated", "messages": opening}, headers=ACME
    )
    assert reply.status_code == 502
    got.append((dict(reply.headers), reply.content))
    for headers, content in got:
        assert ENGINE not in json.dumps(headers)
        assert ENGINE.encode() not in content


async def test_tenants_with_the_same_id_do_not_meet(start: Any, opening: list[Message]) -> None:
    rig = await start(**CLOSED)
    theirs = await rig.ask(opening, conversation="c", headers=ACME)
    history = [*opening, theirs.message, FOLLOW]
    assert (await rig.client.get("/v1/conversations/c", headers=BIRCH)).status_code == 404
    assert (await rig.client.delete("/v1/conversations/c", headers=BIRCH)).status_code == 404
    stolen = await rig.ask(history, conversation="c", headers=BIRCH)
    assert (stolen.path, stolen.reason) == ("cold", "first")
    final = await rig.ask(opening, conversation="c", headers=BIRCH | {"x-session-final": "true"})
    assert final.status == 200
    described = (await rig.client.get("/v1/conversations/c", headers=ACME)).json()
    assert len(described["kept"]) == 1
    mine = await rig.ask(history, conversation="c", headers=ACME)
    assert mine.path != "cold"
    assert (await rig.client.delete("/v1/conversations/c", headers=ACME)).status_code == 204


async def test_stored_response_of_another_tenant_is_unknown(start: Any) -> None:
    rig = await start(**CLOSED | {"decode": {"api_key": ENGINE, "store": True}})
    body = {"model": "simulated", "input": "tell me of letters", "max_output_tokens": 8}
    reply = await rig.client.post("/v1/responses", json=body, headers=ACME)
    assert reply.status_code == 200, reply.text
    name = reply.json()["id"]
    follow = body | {"previous_response_id": name}
    assert (await rig.client.post("/v1/responses", json=follow, headers=BIRCH)).status_code == 404
    assert (await rig.client.get(f"/v1/responses/{name}", headers=BIRCH)).status_code == 404
    assert (await rig.client.post(f"/v1/responses/{name}/cancel", headers=BIRCH)).status_code == 404
    assert (await rig.client.post("/v1/responses", json=follow, headers=ACME)).status_code == 200


async def test_conversation_with_another_model_is_another(start: Any, opening: list[Message]) -> None:
    """Agents use several models in one session; neither may evict or be given the other's KV
    (https://github.com/smg-project/smg/issues/2576)."""
    rig = await start()
    first = await rig.ask(opening, conversation="c")
    key = (await rig.state.store.of("", "c"))[0].key
    other = await rig.ask(opening, conversation="c", model="other", check=False)
    assert other.status == 404  # engines here have one model; that of the other must not have been touched
    assert [frontier.key for frontier in await rig.state.store.of("", "c")] == [key]
    assert await rig.state.store.take(replace(key, model="other")) is None
    again = await rig.ask([*opening, first.message, FOLLOW], conversation="c")
    assert again.path != "cold"


def salts(rig: Any) -> list[str | None]:
    return [leg.get("cache_salt") for engine in (*rig.prefill, *rig.decode) for leg in rig.legs(engine)]


async def test_salts_differ_between_tenants_and_are_stable_for_one(
    start: Any, opening: list[Message]
) -> None:
    rig = await start(**CLOSED)

    async def salt(headers: dict[str, str], **body: Any) -> str:
        for engine in (*rig.prefill, *rig.decode):
            engine.requests.clear()
        await rig.ask(opening, headers=headers, check=False, **body)
        found = salts(rig)
        assert len(found) == 2  # both legs
        assert len(set(found)) == 1
        assert found[0]
        return found[0]

    of_acme = await salt(ACME)
    assert await salt(ACME, conversation="c") == of_acme
    assert (
        len({of_acme, await salt(BIRCH), await salt(ACME, cache_salt="s"), await salt(BIRCH, cache_salt="s")})
        == 4
    )
    # A client that knows another tenant's salt cannot use it.
    assert await salt(BIRCH, cache_salt=of_acme) != of_acme


async def test_salt_that_is_not_text_is_refused(start: Any, opening: list[Message]) -> None:
    rig = await start(**CLOSED)
    assert (await rig.ask(opening, headers=ACME, cache_salt=5, check=False)).status == 400


async def test_without_tenants_prefix_caches_stay_shared(start: Any, opening: list[Message]) -> None:
    rig = await start()
    await rig.ask(opening, headers={"authorization": "Bearer a"})
    await rig.ask(opening, headers={"authorization": "Bearer b"})
    assert salts(rig) == [None] * 4
    await rig.ask(opening, cache_salt="mine", check=False)
    assert salts(rig).count("mine") == 2


async def test_forwarded_tenant_is_ignored_unless_trusted(start: Any, opening: list[Message]) -> None:
    rig = await start(**CLOSED)
    await rig.ask(opening, conversation="c", headers=ACME)
    posing = BIRCH | {"x-antiphon-tenant": "acme"}
    assert (await rig.client.get("/v1/conversations/c", headers=posing)).status_code == 404


async def test_trusted_gateway_names_the_tenant(start: Any, opening: list[Message]) -> None:
    rig = await start(**with_router(trust_forwarded_tenant=True))
    await rig.ask(opening, conversation="c", headers=ACME | {"x-antiphon-tenant": "x"})
    seen = await rig.client.get("/v1/conversations/c", headers=BIRCH | {"x-antiphon-tenant": "x"})
    assert seen.status_code == 200
    for headers in (ACME, BIRCH | {"x-antiphon-tenant": "y"}):
        assert (await rig.client.get("/v1/conversations/c", headers=headers)).status_code == 404


async def test_reload_ends_a_key_for_the_next_turn_and_not_for_one_in_flight(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 100.0}, router={"api_keys": KEYS})
    turn = asyncio.create_task(rig.ask(opening, headers=ACME, max_tokens=40))
    await settled(lambda: rig.decode[0].running)
    others = {"api_keys": "birch=client-key-of-birch"}
    rig.state.tenants.reload(type(rig.state.settings)(**(rig.state.settings.model_dump() | others)))
    assert (await rig.ask(opening, headers=ACME, check=False)).status == 401
    await rig.ask(opening, headers=BIRCH)
    assert (await turn).status == 200
