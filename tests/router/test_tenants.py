"""Who calls: API keys hashed at rest, gateways, and the salts that keep tenants' prefix caches apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from antiphon_server.cli import app
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.errors import UnauthorizedError
from antiphon_server.router.gate.keys import KeysError, Limits, hash_of, read_keys
from antiphon_server.router.gate.salt import default_secret, salt_for
from antiphon_server.router.gate.tenants import Tenants

Message = dict[str, Any]
TWO = "acme=key-of-acme,birch=key-of-birch"


def tenants(**settings: Any) -> Tenants:
    return Tenants(RouterSettings(**settings))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def file_of(folder: Path, entries: object) -> Path:
    path = folder / "keys.yaml"
    path.write_text(entries if isinstance(entries, str) else yaml.safe_dump(entries))
    return path


@pytest.mark.parametrize(
    "headers",
    [
        bearer("key-of-acme"),
        {"authorization": "bearer key-of-acme"},
        {"x-api-key": "key-of-acme"},
        {"authorization": "Basic of-a-proxy", "x-api-key": "key-of-acme"},
        {"authorization": "Bearer of-another-service", "x-api-key": "key-of-acme"},
    ],
)
def test_key_names_its_tenant_wherever_clients_put_it(headers: dict[str, str]) -> None:
    assert tenants(api_keys=TWO).of(headers).name == "acme"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("other"),
        bearer(""),
        {"x-api-key": hash_of("key-of-acme")},
        {"authorization": "key-of-acme"},
    ],
)
def test_no_known_key_is_unauthorized(headers: dict[str, str]) -> None:
    with pytest.raises(UnauthorizedError) as refused:
        tenants(api_keys=TWO).of(headers)
    assert "key-of-acme" not in refused.value.message


def test_without_keys_each_credential_is_a_tenant_and_none_is_needed() -> None:
    everyone = tenants()
    found = [everyone.of(headers) for headers in ({}, bearer("a"), bearer("b"), {"x-api-key": "a"})]
    assert len({tenant.name for tenant in found}) == 4
    assert not any("Bearer" in tenant.name or tenant.named for tenant in found)


def test_file_holds_hashes_and_limits(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        [
            {"tenant": "acme", "hashes": [hash_of("a1"), hash_of("a2")], "limits": {"concurrency": 3}},
            {"tenant": "birch", "hash": hash_of("b"), "limits": {"conversations": 9}},
        ],
    )
    known = tenants(keys_file=path, api_keys="birch=b2,cedar=c")
    assert [known.of(bearer(key)).name for key in ("a1", "a2", "b", "b2", "c")] == [
        "acme",
        "acme",
        "birch",
        "birch",
        "cedar",
    ]
    assert known.of(bearer("a2")).limits == Limits(concurrency=3)
    assert known.of(bearer("b2")).limits == Limits(conversations=9)
    assert known.of(bearer("c")).limits == Limits()


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([{"tenant": "acme", "hash": "plain-secret"}], "antiphon key"),
        ([{"tenant": "acme", "hashes": ["plain-secret"]}], "antiphon key"),
        ([{"tenant": "acme", "key": "plain-secret"}], "0.key"),
        ([{"tenant": "acme", "hash": "sha256:plain-secret"}], "antiphon key"),
        ([{"tenant": "a b", "hash": hash_of("k")}], "0.tenant"),
        ([{"hash": hash_of("k")}], "0.tenant"),
        ([{"tenant": "acme", "limits": {"concurrency": 0}}], "0.limits.concurrency"),
        ([{"tenant": "acme"}, {"tenant": "acme"}], "named twice"),
        ([{"tenant": "acme", "hash": hash_of("k")}, {"tenant": "b", "hash": hash_of("k")}], "the same key"),
        ({"acme": "plain-secret"}, "list"),
        ("- {tenant: acme, hash: [plain-secret", "not YAML in line 1"),
        (
            "- {tenant: acme, hash: 2020-13-45, key: plain-secret}",
            "not YAML in line 1, column 24: correct it",
        ),
        ("- {tenant: acme, hash: a, hash: plain-secret}", "has a name twice in line 1, column 27: keep one"),
        ("- {tenant: acme, limits: {concurrency: 2}, limits: {conversations: 5}}", "a name twice"),
        ("- tenant: acme\n  plain-secret: 1\n  plain-secret: 2\n", "a name twice in line 3, column 3: keep"),
        ("[" * 5000, "is nested too deeply"),
    ],
)
def test_faulty_file_is_explained_and_shows_no_key(tmp_path: Path, entries: object, says: str) -> None:
    with pytest.raises(KeysError) as refused:
        read_keys(file_of(tmp_path, entries), None)
    assert says in str(refused.value)
    assert "plain-secret" not in str(refused.value)
    assert "plain-secret" not in repr(refused.value.__cause__)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"nowhere\.yaml cannot be read: No such file"):
        read_keys(tmp_path / "nowhere.yaml", None)


@pytest.mark.parametrize("inline", ["plain-secret", "acme=a,plain-secret", "acme="])
def test_faulty_environment_is_explained_and_shows_no_key(inline: str) -> None:
    with pytest.raises(KeysError, match="not tenant=key") as refused:
        read_keys(None, inline)
    assert "plain-secret" not in str(refused.value)


def test_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    with pytest.raises(UnauthorizedError):
        tenants(keys_file=file_of(tmp_path, "")).of(bearer("any"))


def test_reload_takes_other_keys_and_a_faulty_one_changes_nothing(tmp_path: Path) -> None:
    path = file_of(tmp_path, [{"tenant": "acme", "hash": hash_of("old")}])
    settings = RouterSettings(keys_file=path)
    known = Tenants(settings)
    file_of(tmp_path, "- {tenant")
    with pytest.raises(KeysError):
        known.reload(settings)
    assert known.of(bearer("old")).name == "acme"
    file_of(tmp_path, [{"tenant": "acme", "hash": hash_of("new")}])
    known.reload(settings)
    assert known.of(bearer("new")).name == "acme"
    with pytest.raises(UnauthorizedError):
        known.of(bearer("old"))


def test_command_prints_a_key_once_and_its_line(tmp_path: Path) -> None:
    runner = CliRunner()
    first, second = (runner.invoke(app, ["key", "acme"]) for _ in range(2))
    assert first.exit_code == 0, first.output
    key, line = first.stdout.splitlines()
    assert key not in line
    assert len(key) > 40
    assert second.stdout.splitlines()[0] != key
    assert tenants(keys_file=file_of(tmp_path, line)).of(bearer(key)).name == "acme"
    assert runner.invoke(app, ["key", "a b"]).exit_code == 2


def test_forwarded_tenant_counts_only_when_trusted() -> None:
    headers = {"x-antiphon-tenant": "birch", **bearer("key-of-acme")}
    assert tenants(api_keys=TWO).of(headers).name == "acme"
    assert tenants().of(headers).name not in {"acme", "birch"}
    assert tenants(api_keys=TWO, trust_forwarded_tenant=True).of(headers).name == "birch"
    assert tenants(trust_forwarded_tenant=True).of(headers).name == "birch"
    with pytest.raises(UnauthorizedError):
        tenants(api_keys=TWO, trust_forwarded_tenant=True).of({"x-antiphon-tenant": "birch"})


def test_without_the_header_a_trusted_gateway_changes_nothing() -> None:
    assert tenants(trust_forwarded_tenant=True).of(bearer("a")) == tenants().of(bearer("a"))


@given(st.text(), st.text(), st.text(), st.text())
def test_salts_of_two_tenants_never_meet(one: str, other: str, mine: str, theirs: str) -> None:
    secret = default_secret("key")
    same = (one, mine) == (other, theirs)
    assert (salt_for(one, mine, secret) == salt_for(other, theirs, secret)) is same


def test_salt_is_stable_over_routers_and_restarts_and_depends_on_the_secret() -> None:
    salts = [
        known.salt(known.of(bearer("key-of-acme")), "mine")
        for known in (
            tenants(api_keys=TWO),
            tenants(api_keys=TWO),
            tenants(api_keys=TWO, engine_key="e"),
            tenants(api_keys=TWO, engine_key="e", salt_secret="s"),
            tenants(api_keys=TWO, engine_key="f", salt_secret="s"),
        )
    ]
    assert None not in salts
    assert salts[0] == salts[1]
    assert salts[3] == salts[4]
    assert len(set(salts)) == 3


@pytest.mark.parametrize(
    ("settings", "salted"),
    [
        ({}, False),
        ({"tenant_salt": "always"}, True),
        ({"api_keys": TWO}, True),
        ({"api_keys": TWO, "tenant_salt": "never"}, False),
        ({"trust_forwarded_tenant": True}, True),
    ],
)
def test_salting_is_for_tenants_that_somebody_names(settings: dict[str, Any], salted: bool) -> None:
    known = tenants(**settings)
    tenant = known.of({"x-antiphon-tenant": "birch", **bearer("key-of-acme")})
    assert (known.salt(tenant, None) is not None) is salted


async def test_refusal_has_the_shape_of_its_api(start: Any, opening: list[Message]) -> None:
    rig = await start(router={"api_keys": TWO})
    body = {"model": "simulated", "messages": opening, "max_tokens": 4}
    for path in ("/v1/chat/completions", "/v1/conversations/c", "/v1/models", "/no/such/path"):
        reply = await rig.client.post(path, json=body, headers=bearer("wrong"))
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["error"]["type"] == "authentication_error"
        assert "wrong" not in reply.text
    reply = await rig.client.post("/v1/messages", json=body)
    assert (reply.status_code, reply.json()["type"]) == (401, "error")
    assert reply.json()["error"]["type"] == "authentication_error"
    assert not rig.legs(rig.prefill[0])
    assert rig.count("antiphon_refused_total", cause="authentication_error") == 5
    await rig.ask(opening, headers=bearer("key-of-acme"))


async def test_probes_need_no_key_and_metrics_only_their_own(start: Any) -> None:
    rig = await start(router={"api_keys": TWO, "metrics_key": "key-of-metrics"})
    assert (await rig.client.get("/health")).status_code == 200
    assert (await rig.client.get("/ready")).status_code == 200
    for headers in ({}, bearer("key-of-acme"), {"authorization": "key-of-metrics"}):
        assert (await rig.client.get("/metrics", headers=headers)).status_code == 401
    assert (await rig.client.get("/metrics", headers=bearer("key-of-metrics"))).status_code == 200
    assert (await rig.client.get("/healthy")).status_code == 401


async def test_metrics_are_open_without_a_key_for_them(start: Any) -> None:
    rig = await start(router={"api_keys": TWO})
    assert (await rig.client.get("/metrics")).status_code == 200


async def test_keys_of_one_tenant_share_its_conversations(start: Any, opening: list[Message]) -> None:
    rig = await start(router={"api_keys": "acme=one,acme=two"})
    await rig.ask(opening, conversation="c", headers=bearer("one"))
    reply = await rig.client.get("/v1/conversations/c", headers=bearer("two"))
    assert reply.json()["id"] == "c"


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key", "X-Antiphon-Tenant"])
async def test_credential_sent_twice_is_refused(start: Any, opening: list[Message], name: str) -> None:
    """Which of two counts would be a matter of who parses them, so a client could slip one past a gateway."""
    rig = await start(router={"trust_forwarded_tenant": True})
    content = json.dumps({"model": "simulated", "messages": opening})
    reply = await rig.client.post(
        "/v1/chat/completions", content=content, headers=[(name, "Bearer a"), (name, "Bearer b")]
    )
    assert reply.status_code == 400


async def test_file_limits_what_is_kept_of_a_tenant(
    start: Any, settled: Any, opening: list[Message], tmp_path: Path
) -> None:
    few = {"tenant": "acme", "hash": hash_of("a"), "limits": {"conversations": 2}}
    path = file_of(tmp_path, [few, {"tenant": "birch", "hash": hash_of("b")}])
    rig = await start(router={"keys_file": path})
    for key, kept in (("a", 2), ("b", 6)):
        for number in range(4):
            await rig.ask(opening, conversation=f"c{number}", headers=bearer(key))
        await settled(lambda kept=kept: len(rig.decode[0].pinned) == kept)
