"""A site's file is judged as a whole, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon_server.deploy import rules
from antiphon_server.deploy.read import read
from antiphon_server.deploy.rules import notices_of
from antiphon_server.deploy.site import Engines, Site
from antiphon_server.stack.settings import Preset, StackSettings
from antiphon_server.stack.validate import ValidationError


def faults(written: Any, folder: Path) -> str:
    file = folder / "site.yaml"
    file.write_text(written if isinstance(written, str) else yaml.safe_dump(written))
    with pytest.raises(ValidationError) as caught:
        read(file)
    return str(caught.value)


def changed(site: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *folders, last = path.split(".")
    place = site
    for folder in folders:
        place = place.setdefault(folder, {})
    place[last] = value
    return site


WRONG = [
    ("hosts.p0.adress", "10.0.0.1", "hosts.p0.adress = '10.0.0.1': did you mean address?"),
    ("engine", {}, "engine = {}: did you mean engines?"),
    ("engines.tensor-parallel", 8, "engines.tensor-parallel = 8: did you mean tensor_parallel?"),
    ("engines.threshold", "many", "engines.threshold = 'many': give a valid integer"),
    ("engines.prefill_cache", 0, "engines.prefill_cache = 0: give a valid boolean"),
    ("engines.failure_policy", "hope", "engines.failure_policy = 'hope': give 'fail' or 'recompute'"),
    ("engines.flags", ["--port", "1"], "engines.flags or engines.prefill_flags = --port: "),
    ("engines.decode_flags", ["--dtype", "float16"], "--dtype = "),
    ("engines.env", {"NCCL_SOCKET_IFNAME": "eth0"}, "NCCL_SOCKET_IFNAME = eth0: it hides EFA"),
    ("engines.env", {"A B": "x"}, "engines.env = A B: is no name"),
    ("engines.env", {"A": "x\ny"}, "engines.env.A = several lines"),
    ("preset", "tpu", "preset = 'tpu': give 'cpu', 'gpu' or 'efa'"),
    ("model", "Qwen3-32B", "model = Qwen3-32B: give a hub id (owner/name)"),
    ("model", "tiny", "model = tiny: give a hub id (owner/name)"),
    ("hosts.p0.address", "127.0.0.1", "hosts.p0.address = 127.0.0.1: give the one that other hosts"),
    ("hosts.p0.address", "0.0.0.0", "hosts.p0.address = 0.0.0.0: give the one"),
    ("hosts.p0.address", "p0.example.com", "hosts.p0.address = p0.example.com: give its numeric IPv4"),
    ("hosts.p0.address", "10.0.0.11", "hosts = 10.0.0.11: is there twice"),
    ("hosts.p0.prefill", 2, "hosts.p0.gpus = 8 of the 16 needed: move engines"),
    ("hosts.p0.prefill", 0, "hosts = no prefill engine: give a host prefill: 1"),
    ("hosts.d0.decode", 0, "hosts = no decode engine"),
    ("hosts.d0.router", False, "hosts = no router: give a host router: true"),
    ("hosts.p0.router", True, "router.store = memory: several routers must share"),
    ("hosts.x0", {"address": "10.0.0.9"}, "hosts.x0 = nothing: give it prefill: 1"),
    ("hosts.x0", {}, "hosts.x0.address = missing: give it"),
    ("hosts.X0", {"address": "10.0.0.9", "decode": 1}, "hosts = X0: name it with small letters"),
    ("hosts.a/b", {"address": "10.0.0.9", "decode": 1}, "hosts = a/b: name it with small letters"),
    ("router.kep", 480, "router.kep = no such setting: did you mean keep?"),
    ("router.keep", "long", "router.keep = long: must be a valid number"),
    ("router.decode", ["http://x:1"], "router.decode = given: leave it out"),
    ("router.lease_ttl", 10, "router = not given: renew_interval 15 + lease_margin 8 must stay below"),
    ("router.store", "http://x", "router.store = http://x: "),
    *(
        ("cache", cache, f"cache = {cache!r}: give a folder's absolute path")
        for cache in ("models", "", "/", "/a/../etc", "/a\nX=1")
    ),
    ("login", "", "login = '': give the user"),
    ("login", "-oProxyCommand=x", "login = '-oProxyCommand=x': give the user"),
    ("model", "/models/a\nX=1", "give a hub id (owner/name) or a folder's absolute path"),
    ("engines.env", {"A": "x\ry"}, "engines.env.A = several lines"),
    ("hosts.p0.prefill", 65, "hosts.p0.prefill = 65: give less than or equal to 64"),
    ("router.port", 8200, "router.port = 8200: give another, such as 8000: decode-0 on d0 listens there"),
    ("router.port", "5600", "router.port = 5600: give another, such as 8000: the side channel of decode-0"),
]


@pytest.mark.parametrize(("path", "value", "told"), WRONG, ids=[f"{p}={v}" for p, v, _ in WRONG])
def test_a_fault_names_the_thing_the_value_and_the_remedy(
    announcement: dict[str, Any], tmp_path: Path, path: str, value: Any, told: str
) -> None:
    assert told in faults(changed(announcement, path, value), tmp_path)


def test_all_faults_are_told_at_once(announcement: dict[str, Any], tmp_path: Path) -> None:
    changed(announcement, "model", "none")
    changed(announcement, "hosts.p0.prefill", 2)
    changed(announcement, "router.kep", 1)
    assert len(faults(announcement, tmp_path).splitlines()) == 3


def test_a_secret_is_never_shown_and_has_a_place_of_its_own(
    announcement: dict[str, Any], tmp_path: Path
) -> None:
    told = faults(changed(announcement, "router.admin_key", "s3cret"), tmp_path)
    assert "s3cret" not in told
    assert "write ANTIPHON_ADMIN_KEY into /etc/antiphon/secrets.env" in told


@pytest.mark.parametrize(
    ("place", "given", "thing", "variable"),
    [
        ("env", {"HF_TOKEN": "s3cret"}, "env.HF_TOKEN", "HF_TOKEN"),
        ("env", {"HF_TOKEN": "$S"}, "env.HF_TOKEN", "HF_TOKEN"),
        ("env", {"ANTIPHON_ENGINE_KEY": "s3cret"}, "env.ANTIPHON_ENGINE_KEY", "ANTIPHON_ENGINE_KEY"),
        ("env", {"VLLM_API_KEY": "s3cret"}, "env.VLLM_API_KEY", "ANTIPHON_ENGINE_KEY"),
        ("env", {"AWS_SECRET_ACCESS_KEY": "s3cret"}, "env.AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"),
        ("env", {"HTTPS_PROXY": "http://u:s3cret@10.0.0.1"}, "env.HTTPS_PROXY", "HTTPS_PROXY"),
        ("flags", ["--api-key", "s3cret"], "flags.--api-key", "ANTIPHON_ENGINE_KEY"),
        ("decode_flags", ["--hf_token=s3cret"], "decode_flags.--hf_token", "HF_TOKEN"),
    ],
)
def test_a_secret_of_engines_is_kept_out_of_files_that_all_may_read(
    place: str, given: Any, thing: str, variable: str, announcement: dict[str, Any], tmp_path: Path
) -> None:
    told = faults(changed(announcement, f"engines.{place}", given), tmp_path)
    assert "s3cret" not in told
    assert f"engines.{thing} = ***: a secret: leave it out, and write {variable} into /etc/antiphon" in told


def test_what_only_sounds_like_a_secret_is_let_through(announcement: dict[str, Any], tmp_path: Path) -> None:
    sound = {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN_PATH": "/etc/antiphon/token", "FI_PROVIDER": "efa"}
    written = yaml.safe_dump(changed(announcement, "engines.env", sound))
    (tmp_path / "site.yaml").write_text(written)
    assert read(tmp_path / "site.yaml").engines.env == sound


@pytest.mark.parametrize("store", ["redis://:s3cret@10.0.0.20:6379/0", "redis://10.0.0.20/?password=s3cret"])
def test_a_password_of_the_store_is_a_secret_too(
    store: str, announcement: dict[str, Any], tmp_path: Path
) -> None:
    told = faults(changed(announcement, "router.store", store), tmp_path)
    assert "s3cret" not in told
    assert "write ANTIPHON_STORE with it into /etc/antiphon/secrets.env" in told


def test_files_of_a_host_are_not_looked_for_here(announcement: dict[str, Any], tmp_path: Path) -> None:
    changed(announcement, "router.keys_file", "/etc/antiphon/keys.yaml")
    changed(announcement, "router.admin_key_file", "/etc/antiphon/admin-key")
    changed(announcement, "model", "/models/qwen3-32b")
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(announcement))
    assert read(tmp_path / "site.yaml").router["keys_file"] == "/etc/antiphon/keys.yaml"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hosts: [", "not YAML in line"),
        ("model: a/b\nmodel: c/d\n", "has a name twice in line 2, column 1 (model): keep one"),
        ("- a\n", "site = ['a']: give a valid dictionary"),
        ("hosts: {a: &a {prefill: 1}, b: {<<: *a}}\n", "has merge keys (<<) in line 1, column 33: write out"),
        ("x-a: &a {}\nservices:\n  a: {<<: *a}\n", ".yaml: it looks like a compose file: name a site's file"),
        ("", "site = None"),
        ("router: " + "[" * 5000, "is nested too deeply: correct it"),
        ("model: 2026-13-45\n", "not YAML in line 1, column 8 (month must be in 1..12)"),
    ],
)
def test_what_is_no_site_is_refused(text: str, told: str, tmp_path: Path) -> None:
    assert told in faults(text, tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"no\.yaml: cannot be read: No such file"):
        read(tmp_path / "no.yaml")


def test_defaults_of_engines_are_those_of_up() -> None:
    """Except what says where they are."""
    site = Site(model="a/b", hosts={"x": {"address": "10.0.0.1", "prefill": 1}})  # type: ignore[dict-item]
    own, up = site.whole(), StackSettings()
    shared = set(Engines.model_fields) & set(StackSettings.__dataclass_fields__)
    assert {"threshold", "decode_ttl", "tensor_parallel", "prefill_cache", "failure_policy"} <= shared
    assert {name: getattr(own, name) for name in shared} == {name: getattr(up, name) for name in shared}
    assert site.preset is Preset.EFA


def test_both_roles_on_one_machine_are_told_of(announcement: dict[str, Any]) -> None:
    announcement["hosts"] = {"one": {"address": "10.0.0.1", "prefill": 1, "decode": 1, "router": True}}
    announcement["engines"]["tensor_parallel"] = 4
    (notice,) = notices_of(Site.model_validate(announcement))
    assert "LIBFABRIC falls to TCP" in notice


def test_a_router_alone_may_have_any_port(announcement: dict[str, Any], tmp_path: Path) -> None:
    changed(announcement, "hosts.d0.router", False)
    changed(announcement, "hosts.r0", {"address": "10.0.0.12", "router": True})
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(changed(announcement, "router.port", 8200)))
    assert read(tmp_path / "site.yaml").router["port"] == 8200


def test_each_rank_has_a_port_that_the_router_must_leave(
    announcement: dict[str, Any], tmp_path: Path
) -> None:
    changed(announcement, "engines.tensor_parallel", 2)
    changed(announcement, "engines.data_parallel", 4)
    assert "side channel of decode-0" in faults(changed(announcement, "router.port", 5603), tmp_path)
    changed(announcement, "engines.flags", [])
    changed(announcement, "preset", "cpu")
    told = faults(changed(announcement, "engines.data_parallel", 70_000), tmp_path)
    assert "hosts.p0 = 1 engines of 70000 ranks: give it fewer" in told


def test_a_fleet_too_large_to_be_one_is_refused_at_once(
    announcement: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is rendered, not even to judge it."""
    monkeypatch.setattr(rules, "settings_faults", None)
    for index in range(40):
        changed(announcement, f"hosts.x{index}", {"address": f"10.0.1.{index}", "decode": 64})
    told = faults(announcement, tmp_path)
    assert (
        told == "hosts = 2562 engines: describe at most 2048 engines in one site; more fleets are more sites"
    )
    for index in range(2000):
        changed(announcement, f"hosts.y{index}", {"address": "10.0.0.1"})
    assert faults(announcement, tmp_path) == "hosts = 2042 of them: give 1024 at most"
