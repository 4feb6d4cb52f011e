"""Where settings come from, and what is said about those that are wrong."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon_server.cli import app
from antiphon_server.router.config.config import Loaded, load
from antiphon_server.router.config.explain import plain
from antiphon_server.router.config.options import options
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, serve
from doubles.kubernetes import api_server, endpoint_slice

ENGINES = {"prefill": ["http://p:1"], "decode": ["http://d:1"]}


def written(folder: Path, text: str) -> Path:
    file = folder / "router.yaml"
    file.write_text(text)
    return file


def faults(loaded: Loaded) -> dict[str, str]:
    assert loaded.settings is None
    return {fault.key: str(fault) for fault in loaded.faults}


def command(*arguments: str, **environ: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **environ})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = written(tmp_path, "prefill: [http://p:1]\ndecode: http://d:1\nport: 1\nkeep: 11\nlease_ttl: 100\n")
    environ = {"ANTIPHON_PORT": "2", "ANTIPHON_KEEP": "12"}
    settings = load({"port": "3"}, environ, file).settings
    assert settings is not None
    assert (settings.port, settings.keep, settings.lease_ttl, settings.host) == (3, 12, 100, "127.0.0.1")
    assert (settings.prefill, settings.decode) == (["http://p:1"], ["http://d:1"])


def test_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = written(tmp_path, "prefill: http://p:1\ndecode: http://d:1\nport: 81")
    settings = load({}, {"ANTIPHON_CONFIG": str(file)}).settings
    assert settings is not None
    assert settings.port == 81


@pytest.mark.parametrize(
    "text", ["http://p:1,http://q:1", "http://p:1, http://q:1", '["http://p:1","http://q:1"]']
)
def test_list_in_the_environment(text: str) -> None:
    settings = load({"decode": ["http://d:1"]}, {"ANTIPHON_PREFILL": text}).settings
    assert settings is not None
    assert settings.prefill == ["http://p:1", "http://q:1"]


def test_only_the_environment_that_is_passed_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_PORT", "nonsense")
    settings = load(ENGINES, {}).settings
    assert settings is not None
    assert settings.port == 8000


def test_empty_variable_is_not_set() -> None:
    settings = load(ENGINES, {"ANTIPHON_PORT": "", "ANTIPHON_ENGINE_KEY": ""}).settings
    assert settings is not None
    assert (settings.port, settings.engine_key) == (8000, None)


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "prefil: http://p:1\ndecode: [localhost:9]\nrenew_intervall: 3\nport: 70000\nlog_level: loud\n",
    )
    environ = {"ANTIPHON_KEEP_SHARE": "2", "ANTIPHON_PROBE_INTERVAL": "often"}
    flags = {"lease_margin": "50", "lease_ttl": "40", "tls_cert": "cert.pem"}
    told = faults(load(flags, environ, file))
    origin = re.escape(str(file))
    for key, expected in {
        "prefil": rf"^prefil \({origin}\): no such setting. Remedy: did you mean prefill\?",
        "renew_intervall": "did you mean renew_interval",
        "decode": rf"^decode = .*localhost:9.* \({origin}\): .*not http\(s\)://host",
        "port": "= 70000 .*less than or equal to 65535.*65535 or less",
        "log_level": "= loud .*give one of debug, info, warning, error",
        "keep_share": r"^keep_share = 2 \(ANTIPHON_KEEP_SHARE\): must be less than or equal to 1",
        "probe_interval": "often.*ANTIPHON_PROBE_INTERVAL.*a number, e.g. 5, the default",
        "settings": "lease_margin 50 must stay below lease_ttl 40",
        "tls_cert": "tls_key is missing",
        "prefill": "no prefill engine is named",
    }.items():
        assert re.search(expected, told[key]), told


def test_every_contradiction_is_told() -> None:
    flags = {**ENGINES, "lease_ttl": "20", "pressure_low": "0.9", "pressure_high": "0.8"}
    loaded = load(flags, {})
    assert [fault.key for fault in loaded.faults] == ["settings", "settings"]
    assert "pressure_low 0.9 is above pressure_high 0.8" in loaded.explain()


def test_contradiction_with_a_setting_that_is_wrong_itself_is_not_told() -> None:
    told = faults(load({**ENGINES, "lease_ttl": "long", "renew_interval": "70"}, {}))
    assert list(told) == ["lease_ttl"]


def test_missing_engines_are_told_for_each_role() -> None:
    told = faults(load({}, {}))
    assert "--prefill" in told["prefill"]
    assert "--discover-decode" in told["decode"]


def test_selector_stands_for_engines() -> None:
    settings = load({"discover_prefill": "role=p", "discover_decode": "role=d"}, {}).settings
    assert settings is not None


def test_engine_of_both_roles_is_told() -> None:
    told = faults(load({"prefill": ["http://e:1"], "decode": ["http://E:1/"]}, {}))
    assert "http://e:1 is named for prefill too" in told["decode"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("port: [", "not YAML in line 1, column 8"),
        ("- port", "holds a list"),
        ("port: 1\nport: 2\n", "the file has a name twice in line 2, column 1: port. Remedy: keep one"),
        ("port: 2020-13-45", "not YAML in line 1, column 7: month must be in 1..12"),
        ('port: !!int "x"', "not YAML in line 1, column 7: invalid literal"),
        ('port: !!bool "x"', "not YAML in line 1, column 7"),
        ('port: "\\UFFFFFFFF"', "not YAML"),
        ("port: " + "[" * 5000, "is nested too deeply"),
        ("port: &a {host: b}\nkeep: {<<: *a}", "has merge keys (<<) in line 2, column 8"),
    ],
)
def test_file_that_is_no_mapping_is_told(tmp_path: Path, text: str, complaint: str) -> None:
    assert complaint in faults(load(ENGINES, {}, written(tmp_path, text)))["config"]


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "No such file" in faults(load(ENGINES, {}, tmp_path / "none.yaml"))["config"]


@pytest.mark.parametrize("source", ["flags", "environ", "file"])
def test_secret_is_read_from_a_file(tmp_path: Path, source: str) -> None:
    (tmp_path / "key").write_text("hush-hush\n")
    key = str(tmp_path / "key")
    flags: dict[str, Any] = ENGINES | ({"engine_key_file": key} if source == "flags" else {})
    environ = {"ANTIPHON_ENGINE_KEY_FILE": key} if source == "environ" else {}
    file = written(tmp_path, f"engine_key_file: {key}") if source == "file" else None
    settings = load(flags, environ, file).settings
    assert settings is not None
    assert settings.engine_key is not None
    assert settings.engine_key.get_secret_value() == "hush-hush"


def test_secret_and_its_file_in_one_place_contradict(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hush-hush")
    environ = {"ANTIPHON_ENGINE_KEY": "hush-hush", "ANTIPHON_ENGINE_KEY_FILE": str(tmp_path / "key")}
    told = faults(load(ENGINES, environ))
    assert "give one of them" in told["engine_key_file"]


def test_secret_is_never_shown(tmp_path: Path) -> None:
    file = written(
        tmp_path, "engine_key: [hush-hush]\nengine_kee: hush-hush\nprefill: http://me:hush-hush@p:x/\n"
    )
    loaded = load({}, {"ANTIPHON_ADMIN_KEY": "hush-hush"}, file)
    assert {"engine_key", "engine_kee", "prefill"} <= set(faults(loaded))
    assert "hush-hush" not in loaded.explain()
    settings = load(ENGINES, {"ANTIPHON_ADMIN_KEY": "hush-hush"}).settings
    assert settings is not None
    assert plain(settings)["admin_key"] == "***"


def test_no_secret_is_a_flag() -> None:
    code, text = command("router", "--help")
    assert code == 0
    secrets = [option for option in options() if option.secret]
    assert secrets
    for option in secrets:
        assert option.flag.endswith("-file")
        assert not re.search(rf"--{option.name.replace('_', '-')}(?!-file)\b", text)


def test_every_setting_is_a_flag_with_words_and_a_heading() -> None:
    text = re.sub(r"[\s│]+", " ", command("router", "--help")[1])
    assert {option.name for option in options()} == set(RouterSettings.model_fields)
    for option in options():
        assert option.flag in text
        assert f"env: {option.variable}" in text, option.name
        assert option.group in text
        assert len(option.description) > 8, f"{option.name} needs a description"
        assert option.group != "Others", f"{option.name} needs a group"


def test_variable_that_looks_like_a_setting_is_noticed() -> None:
    loaded = load(ENGINES, {"ANTIPHON_RENEW_INTERVALL": "3", "ANTIPHON_API": "x", "HOME": "/"})
    assert loaded.settings is not None
    assert loaded.notices == ("ANTIPHON_RENEW_INTERVALL is not read: did you mean ANTIPHON_RENEW_INTERVAL?",)


def test_variable_of_a_kubernetes_service_is_explained() -> None:
    told = faults(load(ENGINES, {"ANTIPHON_PORT": "tcp://10.0.0.7:80"}))
    assert "enableServiceLinks" in told["port"]


def test_certificate_and_key_are_tried(tmp_path: Path) -> None:
    for name in ("one", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
             "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", "/CN=localhost"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
    cert, key, other = str(tmp_path / "one.pem"), str(tmp_path / "one.key"), str(tmp_path / "other.key")
    assert load(ENGINES | {"tls_cert": cert, "tls_key": key}, {}).settings is not None
    assert "tls_key is missing" in faults(load(ENGINES | {"tls_cert": cert}, {}))["tls_cert"]
    assert other in faults(load(ENGINES | {"tls_cert": cert, "tls_key": other}, {}))["tls_cert"]
    assert "cannot be read" in faults(load(ENGINES | {"tls_cert": cert, "tls_key": "none"}, {}))["tls_key"]


def test_check_says_what_the_router_says(tmp_path: Path) -> None:
    file = written(tmp_path, "prefill: http://p:1\ndecode: http://d:1\nkep: 3\nport: -1\n")
    code, text = command("check-config", "--config", str(file))
    refused, said = command("router", "--config", str(file))
    assert (code, refused) == (2, 2)
    assert "kep" in said
    assert "port" in said
    assert text == said + "faults: 2\n"


def test_check_of_a_sound_configuration() -> None:
    assert command("check-config", "--prefill", "http://p:1", "--decode", "http://d:1") == (
        0,
        "the configuration is sound\n",
    )


async def probe(prefill: dict[str, Any], decode: dict[str, Any], *arguments: str) -> tuple[int, str]:
    cluster = SimulatedCluster()
    p = SimulatedEngine(Settings(role="prefill", api_key="hush-hush", **prefill), cluster=cluster)
    d = SimulatedEngine(Settings(role="decode", api_key="hush-hush", **decode), cluster=cluster)
    async with serve(p) as p_url, serve(d) as d_url:
        named = ["--prefill", p_url, "--decode", d_url, *arguments]
        environ = {"ANTIPHON_ENGINE_KEY": "hush-hush"}
        return await asyncio.to_thread(command, "check-config", "--probe", *named, **environ)


async def test_probe_says_what_would_be_served() -> None:
    code, text = await probe({}, {})
    assert code == 0, text
    assert "simulated, vLLM" in text
    assert "over 1 pairs of engines, 1 of them with reuse" in text


@pytest.mark.parametrize(
    ("prefill", "decode", "arguments", "complaint"),
    [
        ({"block_size": 32}, {}, (), "not used together: block size differs: prefill has 32, decode has 16"),
        ({}, {"longest_lease": 30.0}, (), "grants 30 s at most, lease_ttl asks for 60 s"),
        ({}, {"decode_lease": 5.0}, (), "leases of 5 s end within lease_margin 8 s"),
        ({}, {}, ("--decode", "http://127.0.0.1:9"), "http://127.0.0.1:9: does not answer"),
    ],
)
async def test_probe_finds_engines_that_do_not_go_together(
    prefill: dict[str, Any], decode: dict[str, Any], arguments: tuple[str, ...], complaint: str
) -> None:
    code, text = await probe(prefill, decode, *arguments)
    assert code == 1, text
    assert complaint in text


async def test_probe_asks_the_engines_that_discovery_finds(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("models")
    cluster = SimulatedCluster()
    p = SimulatedEngine(Settings(role="prefill"), cluster=cluster)
    d = SimulatedEngine(Settings(role="decode"), cluster=cluster)
    async with serve(p) as p_url, serve(d) as d_url, api_server() as api:
        port = int(d_url.rpartition(":")[2])
        api.put(endpoint_slice("d", {"127.0.0.1": {"ready": True}}, labels={"role": "decode"}, port=port))
        given = ["--prefill", p_url, "--discover-decode", "role=decode", "--discover-port", "http"]
        given += ["--discover-api", api.url, "--discover-account", str(tmp_path)]
        code, text = await asyncio.to_thread(command, "check-config", "--probe", *given)
        assert (code, f"decode {d_url}: simulated" in text) == (0, True), text
        api.refuse = 403
        code, text = await asyncio.to_thread(command, "check-config", "--probe", *given)
        assert (code, "discovery fails: 403" in text) == (1, True), text


async def test_probe_names_an_engine_under_the_wrong_role_and_a_refused_key() -> None:
    engine = SimulatedEngine(Settings(role="prefill", api_key="hush-hush"), cluster=SimulatedCluster())
    async with serve(engine) as url:
        arguments = ("check-config", "--probe", "--prefill", "http://127.0.0.1:9", "--decode", url)
        environ = {"ANTIPHON_ENGINE_KEY": "hush-hush"}
        code, text = await asyncio.to_thread(command, *arguments, **environ)
        assert (code, "is a prefill engine" in text) == (1, True), text
        code, text = await asyncio.to_thread(command, *arguments)
        assert (code, "refuses the router's key" in text) == (1, True), text
