"""How manifests and command lines are read into one form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon_server.doctor.declared.box import Box, seconds, size
from antiphon_server.doctor.declared.command_line import Command, recognised
from antiphon_server.doctor.declared.declared import HIDDEN, Engine
from antiphon_server.doctor.declared.manifests import ManifestError, read
from antiphon_server.doctor.declared.manifests.interpolation import (
    MissingVariableError,
    interpolated,
    variables_of,
)
from antiphon_server.doctor.finding import Severity
from antiphon_server.stack.flags import read_flags
from antiphon_server.stack.settings import Role
from doctor import goods
from doctor.goods import looked_at, write
from rig.printed import commands

HERE = Box(manager="shell", network="here")


def engine(*words: str, env: dict[str, str] | None = None, subject: str = "prefill") -> Engine:
    """The one that the words start."""
    (found,) = recognised(Command(subject, words, env or {}, HERE)).engines
    return found


# --- command lines


@pytest.mark.parametrize(
    "words",
    [
        ("vllm", "serve", "model", "--block-size", "32"),
        ("/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model=model", "--block_size=32"),
        ("python", "-m", "vllm.entrypoints.cli.main", "serve", "model", "--block-size=32"),
        ("env", "A=1", "vllm", "serve", "model", "--block-size", "16", "--block-size", "32"),
        ("sh", "-c", "echo starts; exec vllm serve model \\\n --block-size 32"),
        (
            "tini",
            "--",
            "bash",
            "-ec",
            "A=1 exec python -m vllm.entrypoints.openai.api_server --model model --block-size 32",
        ),
    ],
    ids=" ".join,
)
def test_hand_written_commands_of_vllm_are_read_as_they_are(words: tuple[str, ...]) -> None:
    found = engine(*words)
    assert (found.role, found.model, found.flags.get("block-size")) == (Role.PREFILL, "model", "32")


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        (("--preset", "cpu", "--threads", "2"), {}),
        (("--preset", "efa", "--address", "10.0.0.7", "--gpus", "0-3", "--tensor-parallel", "4"), {}),
        (("--no-prefill-cache", "--", "--max-num-seqs", "8"), {"ANTIPHON_ENGINE_MAX_MODEL_LEN": "512"}),
        (("--stock",), {"ANTIPHON_ENGINE_PREFILL_CACHE": "false", "ANTIPHON_ENGINE_STOCK": "false"}),
        ((), {"ANTIPHON_ENGINE_FLAGS": "--seed 3", "ANTIPHON_ENGINE_THRESHOLD": "128"}),
    ],
)
def test_antiphon_engine_is_read_as_what_it_prints(flags: tuple[str, ...], environ: dict[str, str]) -> None:
    told = commands("engine", "prefill", *flags, environ=environ)["prefill-0"]
    found = engine("antiphon", "engine", "prefill", *flags, env=environ)
    shown = read_flags(told.argv[2:])
    assert dict(found.flags.values) == dict(shown.values)
    cpu_share = {"OMP_NUM_THREADS"}
    assert {k: v for k, v in found.env.items() if k in told.env.keys() - cpu_share} == {
        k: v for k, v in told.env.items() if k not in cpu_share
    }


def test_this_processs_environment_says_nothing_of_declared_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_ENGINE_PRESET", "efa")
    monkeypatch.setenv("ANTIPHON_ENGINE_KEY", "mine")
    found = engine("antiphon", "engine", "prefill")
    assert (found.flags.get("block-size"), found.key) == ("32", None)


@pytest.mark.parametrize("address", ["auto", "p5-node-3.internal"])
def test_an_address_found_where_the_engine_runs_is_not_guessed_here(address: str) -> None:
    found = engine("antiphon", "engine", "decode", "--address", address)
    assert found.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == f"{HIDDEN} {address}"


def test_a_refused_command_is_a_finding() -> None:
    found = recognised(Command("x", ("antiphon", "engine", "prefill", "--tensor-parallel", "0"), {}, HERE))
    (said,) = found.unread
    assert (said.check, said.subject) == ("command-line", "x")
    assert "tensor-parallel" in said.what


@pytest.mark.parametrize(
    ("transfer", "severity", "told"),
    [
        ('{"kv_role": "kv_both"}', Severity.WARNING, "vLLM's role of an engine that does both"),
        ('{"kv_connector": "X"}', Severity.WARNING, "kv_role is None"),
        ('{"kv_role": "kv_producer"', Severity.ERROR, "cannot be read: it is not JSON"),
        ('[{"kv_role": "kv_producer"}]', Severity.ERROR, "cannot be read: it holds a list"),
    ],
)
def test_an_engine_of_no_role_is_told_with_the_reason(
    tmp_path: Path, transfer: str, severity: Severity, told: str
) -> None:
    (tmp_path / "a.sh").write_text(f"vllm serve m --kv-transfer-config '{transfer}'\n")
    (said,) = looked_at(tmp_path).findings
    assert (said.check, said.severity) == ("command-line", severity)
    assert told in said.what


def test_a_line_whose_quotation_marks_do_not_close_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("# prefill-0: x\nvllm serve 'm\necho it's\n")
    (said,) = looked_at(tmp_path).findings
    assert (said.check, said.subject) == ("command-line", "a.sh: prefill-0")


@pytest.mark.parametrize("name", ["objects.json", "objects.yaml"])
def test_a_list_of_objects_is_read_as_its_objects(tmp_path: Path, name: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    pod["spec"] = {"containers": [{"name": "engine", "command": ["antiphon", "engine", "prefill"]}]}
    (tmp_path / name).write_text(json.dumps([pod]))
    (scene,) = read([tmp_path / name], {})
    assert [one.role for one in scene.declared.engines] == [Role.PREFILL]


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("ANTIPHON_ENGINE_TENSOR_PARALEL", "did you mean ANTIPHON_ENGINE_TENSOR_PARALLEL?"),
        ("ANTIPHON_ENGINE_KEY_FILE", "did you mean ANTIPHON_ENGINE_KEY?"),
        ("ANTIPHON_ENGIN_MODEL", "did you mean ANTIPHON_ENGINE_MODEL?"),
        ("ANTIPHON_ENGINE_XYZZY", "'antiphon engine --help' names all"),
        ("ANTIPHON_ADMIN_KEY", None),
        ("ANTIPHON_PREFILL", None),
    ],
)
def test_variables_that_nothing_reads_are_told(tmp_path: Path, variable: str, told: str | None) -> None:
    (tmp_path / "a.sh").write_text(f"env {variable}=1 antiphon engine prefill\n")
    found = [one.remedy for one in looked_at(tmp_path).findings if one.check == "engine-settings"]
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


def test_nested_transfer_flags_are_one_configuration() -> None:
    prefix = "--kv-transfer-config"
    words = [prefix, '{"kv_role": "kv_producer"}', f"{prefix}.kv_connector=AntiphonConnector"]
    words += [f"{prefix}.kv_connector_extra_config.bidirectional_kv_xfer", "true"]
    flags = read_flags(words)
    assert flags.transfer == {
        "kv_role": "kv_producer",
        "kv_connector": "AntiphonConnector",
        "kv_connector_extra_config": {"bidirectional_kv_xfer": True},
    }


def test_plain_vllm_and_strangers_are_not_ours() -> None:
    for words in (("vllm", "serve", "model"), ("nginx",), ("antiphon", "up"), ()):
        assert not recognised(Command("llm", words, {}, HERE))


# --- files


def test_kinds_of_files_are_told_by_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "router.yaml").write_text("prefill: [http://a:8100]\ndecode: [http://b:8200]\n")
    (tmp_path / "lines.sh").write_text('# decode-0: x\nenv VLLM_API_KEY="$K" vllm serve m --port 9\n')
    (scene,) = read([tmp_path], {})
    assert [one.subject for one in scene.declared.engines] == ["lines.sh: decode-0"]
    assert scene.declared.engines[0].key == f"{HIDDEN} $K"
    assert [one.subject for one in scene.declared.routers] == ["router.yaml"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("none.yaml", None, "is not there"),
        ("a.yaml", "a: [", "is not YAML in line 1"),
        ("a.yaml", "services:\n  a: 2020-13-45", "is not YAML in line 2"),
        ("a.yaml", 'a: "\\UFFFFFFFF"', "is not YAML"),
        ("a.json", "[1, 2]", "declares no engine, router or store"),
        ("a.yaml", "a: 1", "declares no engine, router or store"),
        ("kustomization.yaml", "kind: Kustomization", "kubectl kustomize"),
        ("site.yaml", "hosts: {p0: {}}", "antiphon hosts"),
        (
            "site.yaml",
            "{model: a/b, host: {p0: {}}}",
            "looks like a site: did you mean hosts instead of host?",
        ),
        ("compose.yaml", "services: {a: {image: '${TAG:?name one}'}}", "variable TAG is not set: name one"),
        ("compose.yaml", "services: [a]", "no mapping"),
        ("compose.yaml", "services: {a: {command: 'vllm serve \"m'}}", "service a is not of its form"),
        ("compose.yaml", "services: {a: antiphon}", "service a is not of its form (it is no mapping)"),
        ("a.service", "[Service]\nExecStart=vllm serve 'm", "a.service is not of its form"),
        (
            "compose.yaml",
            "services: {a: {deploy: {replicas: x}, command: [antiphon, router]}}",
            "service a is not of its form",
        ),
        ("k.yaml", "{apiVersion: v1, kind: Pod, spec: {containers: [7]}}", "not of its form"),
        ("a.sh", "ls", "declares no engine, router or store"),
    ],
)
def test_what_cannot_be_read_is_named_with_a_remedy(tmp_path: Path, name: str, text: Any, told: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ManifestError, match=r".*") as caught:
        read([tmp_path / name], {})
    assert told in str(caught.value)
    assert name in str(caught.value)


def test_profiles_are_looked_at_one_by_one(tmp_path: Path) -> None:
    services = "\n".join(
        f"  {role}-{profile}: {{image: 'antiphon/engine:1', profiles: [{profile}], command: [{role}]}}"
        for role in ("prefill", "decode")
        for profile in ("cpu", "gpu")
    )
    (tmp_path / "compose.yaml").write_text(f"services:\n{services}\n")
    (tmp_path / ".env").write_text("COMPOSE_PROFILES=gpu\n")
    scenes = read([tmp_path], {})
    assert [scene.name for scene in scenes] == ["compose.yaml (gpu)", "compose.yaml (cpu)"]
    assert all(len(scene.declared.engines) == 2 for scene in scenes)


STRANGERS = """
  web: {command: "sh -c 'echo it"}
  site: nginx
  old: !reset {image: antiphon/engine, command: [prefill, --tensor-parallel, "0"]}
  ports: {image: nginx, ports: !override ["80:80"], environment: !reset null, deploy: {replicas: x}}
"""


def test_services_that_run_something_else_may_be_of_any_form(tmp_path: Path) -> None:
    files = dict(goods.compose().files)
    files["compose.yaml"] = files["compose.yaml"].replace("\nservices:\n", "\nservices:\n" + STRANGERS)
    assert STRANGERS in files["compose.yaml"]
    seen = looked_at(write(files, tmp_path))
    assert [one for one in seen.findings if one.severity is not Severity.NOTE] == []
    assert len(seen.checked) > 40


def test_units_that_run_something_else_may_be_of_any_form(tmp_path: Path) -> None:
    write(goods.units().files, tmp_path)
    (tmp_path / "d0" / "web.service").write_text(
        "[Service]\nEnvironment=A='b\nExecStart=nginx -g 'daemon off\n"
    )
    assert len(looked_at(tmp_path).checked) > 40


def test_tags_of_compose_stand_for_what_is_behind_them(tmp_path: Path) -> None:
    text = "services: {d: {image: 'antiphon/engine:1', command: !override [decode, --port, !own 8201]}}"
    (tmp_path / "compose.yaml").write_text(text)
    (scene,) = read([tmp_path], {})
    assert scene.declared.engines[0].flags.get("port") == "8201"


def test_a_redis_of_the_same_compose_file_is_not_one_elsewhere(tmp_path: Path) -> None:
    files = dict(goods.compose().files)
    files[".env"] = files[".env"].replace("ANTIPHON_STORE=memory", "ANTIPHON_STORE=redis://redis:6379/0")
    scenes = read([write(files, tmp_path)], {})
    assert [scene.name for scene in scenes] == [f"compose.yaml ({name})" for name in ("cpu", "efa", "gpu")]
    assert all(len(scene.declared.stores) == 1 for scene in scenes)
    found = {finding.subject for finding in looked_at(tmp_path).findings if finding.check == "redis-password"}
    assert found <= {"compose.yaml: router-efa"}  # on the host's network, where no service has a name


# --- small forms


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("$A/${B}/${C:-c}/${C-d}", "a//c/d"),
        ("${B:-x}${B-x}${A:+set}${C:+set}", "xset"),
        ("$$A $${A}", "$A ${A}"),
        ("${C:-${A:-z}}", "a"),
        ("redis://:${A}@h", "redis://:a@h"),
    ],
)
def test_variables_are_filled_in_as_compose_does(text: str, becomes: str) -> None:
    assert interpolated([{"k": text}], {"A": "a", "B": ""}) == [{"k": becomes}]


def test_a_required_variable_must_be_set() -> None:
    with pytest.raises(MissingVariableError, match="variable A is not set"):
        interpolated("${A:?}", {"A": ""})


def test_environment_files() -> None:
    text = "# no\nA=1 # one\nexport B='two # 2'\nC=\nD=\"x=y\"\n; no\nE\n"
    assert variables_of(text) == {"A": "1", "B": "two # 2", "C": "", "D": "x=y"}


@pytest.mark.parametrize(
    ("text", "value"), [("4g", 4 << 30), ("64M", 64 << 20), ("8Gi", 8 << 30), (1024, 1024), ("much", None)]
)
def test_sizes(text: object, value: int | None) -> None:
    assert size(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("90", 90),
        ("45s", 45),
        ("1m30s", 90),
        ("1min 30s", 90),
        ("500ms", 0.5),
        ("infinity", float("inf")),
        ("x", None),
    ],
)
def test_durations(text: str, value: float | None) -> None:
    assert seconds(text) == value
