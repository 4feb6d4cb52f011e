"""``antiphon engine``: one engine as ``antiphon up`` would start it, its settings from wherever they come."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from antiphon_server.cli import app
from antiphon_server.deploy.host_files import render_hosts
from antiphon_server.deploy.read import read
from antiphon_server.environment import ENGINE_VARIABLES
from antiphon_server.router.config.config import load
from antiphon_server.router.config.options import options
from antiphon_server.stack import ports
from antiphon_server.stack.engine_cli import misspelt
from deploy.hosts.sites import EXAMPLES
from deploy.hosts.sites import variables as variables_of
from rig.printed import Printed, commands

ROLES = ("prefill", "decode")
PRESETS = {"cpu": (), "gpu": ("--tensor-parallel", "2"), "efa": ("--address", "10.0.0.7")}
VARIED = {
    "plain": (),
    "at an address": ("--address", "10.0.0.7"),
    "of another shape": ("--no-prefill-cache", "--max-model-len", "512", "--kv-space", "3", "--stock"),
}
PLACED = ("--port", "VLLM_NIXL_SIDE_CHANNEL_PORT")
"""What tells engines of one machine apart."""
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings and models of the developer's own; and the tests do not turn into an engine."""
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("an engine was started"))


def without_place(one: Printed) -> tuple[tuple[str, ...], dict[str, str]]:
    port = one.argv.index("--port") + 1
    argv = (*one.argv[:port], *one.argv[port + 1 :])
    return argv, {name: value for name, value in one.env.items() if name not in PLACED}


@pytest.mark.parametrize("varied", VARIED.values(), ids=VARIED)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("role", ROLES)
def test_it_is_the_engine_that_up_would_start(role: str, preset: str, varied: tuple[str, ...]) -> None:
    given = ("--preset", preset, "--model", "tiny", *PRESETS[preset], *varied)
    started = commands("up", *given)[f"{role}-0"]
    gpus = started.env.get("CUDA_VISIBLE_DEVICES", "")
    threads = started.env.get("OMP_NUM_THREADS", "1")
    own = commands("engine", role, *given, "--gpus", gpus, "--threads", threads)
    assert without_place(own[f"{role}-0"]) == without_place(started)
    assert ("CUDA_VISIBLE_DEVICES" in own[f"{role}-0"].env) == (preset != "cpu")


@pytest.mark.parametrize(("role", "port"), [("prefill", "8100"), ("decode", "8200")])
def test_its_ports_are_the_same_on_every_host(role: str, port: str) -> None:
    own = commands("engine", role, "--model", "tiny", "--index", "3")[f"{role}-3"]
    assert own.argv[own.argv.index("--port") + 1] == port
    assert own.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"


OPTIONS: dict[str, tuple[str, ...]] = {
    "preset": ("gpu",),
    "model": ("tiny-bpe",),
    "index": ("2",),
    "host": ("0.0.0.0",),
    "address": ("10.0.0.7",),
    "port": ("9000",),
    "side_channel_port": ("5700",),
    "gpus": ("1", "gpu"),
    "prefill_cache": ("false",),
    "max_model_len": ("512",),
    "kv_space": ("2",),
    "threads": ("7",),
    "tensor_parallel": ("2", "gpu"),
    "data_parallel": ("2", "gpu"),
    "block_size": ("64",),
    "threshold": ("5",),
    "decode_ttl": ("33",),
    "failure_policy": ("fail",),
    "stock": ("true",),
}
"""A value other than the default, and the preset that it counts in."""


def variables() -> dict[str, str]:
    """Of the command's own: environment variable by option."""
    command: Any = typer.main.get_command(app)
    options = command.commands["engine"].params
    return {one.name: one.envvar for one in options if one.name not in ("role", "flags", "printed", "help")}


def test_every_option_has_a_variable_of_its_name() -> None:
    assert variables() == {name: f"ANTIPHON_ENGINE_{name.upper()}" for name in OPTIONS}
    others = {"ANTIPHON_ENGINE_FLAGS", "ANTIPHON_ENGINE_KEY"}
    assert {*variables().values(), *others} == ENGINE_VARIABLES


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_may_come_from_the_environment(name: str) -> None:
    value, preset = (*OPTIONS[name], "cpu")[:2]
    flag = "--" + name.replace("_", "-")
    words = {"false": ("--no-prefill-cache",), "true": (flag,)}.get(value, (flag, value))
    given = {"ANTIPHON_ENGINE_PRESET": preset, "ANTIPHON_ENGINE_MODEL": "tiny"}
    by_option = commands("engine", "prefill", *words, environ=given)
    by_variable = commands("engine", "prefill", environ={**given, f"ANTIPHON_ENGINE_{name.upper()}": value})
    assert by_variable == by_option
    assert by_option != commands("engine", "prefill", environ=given)


def test_an_option_wins_over_its_variable_and_an_empty_variable_is_none() -> None:
    (own,) = commands(
        "engine", "decode", "--port", "9001", "--model", "tiny", environ={"ANTIPHON_ENGINE_PORT": "9000"}
    ).values()
    assert own.url == "http://127.0.0.1:9001"
    empty = dict.fromkeys([*variables().values(), "ANTIPHON_ENGINE_FLAGS", "ANTIPHON_ENGINE_KEY"], "")
    assert commands("engine", "decode", environ=empty) == commands("engine", "decode")


def test_flags_of_vllm_come_last_those_of_the_environment_before_the_commands_own() -> None:
    environ = {"ANTIPHON_ENGINE_FLAGS": "--seed 1 --generation-config 'a b'"}
    (own,) = commands("engine", "decode", "--model", "tiny", "--", "--seed", "2", environ=environ).values()
    assert own.argv[-6:] == ("--seed", "1", "--generation-config", "a b", "--seed", "2")


def test_the_router_minds_no_variable_of_an_engine() -> None:
    engines = dict.fromkeys(ENGINE_VARIABLES, "1")
    mine = {"ANTIPHON_PREFILL": "http://p:8100", "ANTIPHON_DECODE": "http://d:8200"}
    loaded = load({}, {**engines, **mine})
    assert loaded.explain() == ""
    assert "ANTIPHON_ENGINE_KEY" in load({}, {**mine, "ANTIPHON_ENGINE_KEYS": "k"}).explain()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ANTIPHON_ENGINE_ADRESS", "ANTIPHON_ENGINE_ADDRESS"),
        ("ANTIPHON_ENGINE_GPU", "ANTIPHON_ENGINE_GPUS"),
        ("ANTIPHON_ENGIN_MODEL", "ANTIPHON_ENGINE_MODEL"),
        ("antiphon_engine_model", "ANTIPHON_ENGINE_MODEL"),
        ("ANTIPHON_ENGINE_KEYS", "ANTIPHON_ENGINE_KEY"),
    ],
)
def test_a_misspelt_variable_is_told_without_its_value(name: str, meant: str) -> None:
    given = {"ANTIPHON_ENGINE_MODEL": "tiny"} if "MODEL" not in name else {}
    ran = CliRunner().invoke(app, ["engine", "decode", "--print"], env={**given, name: "v4lue"})
    assert f"notice: {name} is not read: did you mean {meant}?\n" in ran.stderr
    assert "v4lue" not in ran.output


def test_an_engine_says_nothing_of_its_own_variables_and_the_routers() -> None:
    # Of the router's settings one looks like an engine's, and an engine without its key is one for everybody.
    routers = {option.variable for option in options()} - {"ANTIPHON_ENGINE_KEY_FILE"}
    assert misspelt(dict.fromkeys({*ENGINE_VARIABLES, *routers, "ENGINE_PORT", "PATH"}, "1")) == []
    assert "did you mean ANTIPHON_ENGINE_KEY?" in misspelt({"ANTIPHON_ENGINE_KEY_FILE": "/key"})[0]


@pytest.mark.parametrize("site", ["site.yaml", "site-fleet.yaml"])
def test_neither_engine_nor_router_minds_what_the_unit_of_a_host_is_told(site: str) -> None:
    for host in render_hosts(read(EXAMPLES / site)):
        for name, text in host.files.items():
            if name.startswith("engine-"):
                told = variables_of(text)
                assert "ANTIPHON_ENGINE_ROLE" in told
                assert misspelt(told) == []
                assert load({}, told).notices == ()


def test_variables_of_a_kubernetes_service_are_no_misspelt_ones() -> None:
    told = ("SERVICE_HOST", "SERVICE_PORT", "PORT_8100_TCP", "PORT_8100_TCP_ADDR")
    environ = {f"ANTIPHON_{of}{name}": "x" for name in told for of in ("", "ENGINE_", "ROUTER_")}
    assert misspelt(environ) == []
    assert load({}, environ).notices == ()


def test_gpus_may_be_a_range_or_names_and_are_the_surroundings_if_none_are_given() -> None:
    def seen(*words: str) -> str | None:
        given = ("--preset", "gpu", "--tensor-parallel", "3", "--model", "tiny")
        (own,) = commands("engine", "decode", *given, *words).values()
        return own.env.get("CUDA_VISIBLE_DEVICES")

    assert seen("--gpus", "4-5,7") == "4,5,7"
    assert seen("--gpus", "GPU-a, MIG-b/1/0,2") == "GPU-a,MIG-b/1/0,2"
    assert seen() is None


def test_an_engine_of_two_nodes_needs_half_its_gpus_on_each() -> None:
    given = ("--preset", "gpu", "--tensor-parallel", "4", "--gpus", "0-1", "--model", "tiny")
    (first,) = commands("engine", "decode", *given, "--", "--nnodes", "2", "--node-rank", "0").values()
    assert first.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert first.argv[:2] == ("-m", "vllm.entrypoints.openai.api_server")
    rest = ("--", "--nnodes", "2", "--node-rank", "1", "--headless")
    (second,) = commands("engine", "decode", *given, *rest).values()
    assert second.argv[:3] == ("-m", "vllm.entrypoints.cli.main", "serve")  # it has no API server


def refused(*words: str, **environ: str) -> str:
    """Why ``antiphon engine`` does not start."""
    ran = CliRunner().invoke(app, ["engine", *words], env={"COLUMNS": "200", **environ})
    assert ran.exit_code != 0
    return ran.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("prefill", "--preset", "efa"), "address = 127.0.0.1: give this node's address"),
        (
            ("prefill", "--address", "no-such-host.invalid"),
            "address = no-such-host.invalid: give this host's",
        ),
        (("prefill", "--address", "203.0.113.9"), "address = 203.0.113.9: not an address of this host"),
        (("prefill", "--host", "203.0.113.9"), "host = 203.0.113.9: not an address of this host"),
        (("decode", "--tensor-parallel", "2"), "tensor_parallel = 2: use more engines on preset cpu"),
        # Printed only: engines that run on this machine may hold the default ports.
        (("decode", "--print", "--model", "no-such-model"), "no model 'no-such-model'"),
        (("decode", "--preset", "gpu", "--gpus", "0,1"), "gpus = 0,1: name 1"),
        (("decode", "--", "--port", "1"), "overrides[decode].flags = --port"),
        (("router",), "'router' is not one of"),
        (("decode", "--port", "0"), "'--port'"),
        (("decode", "--failure-policy", "hope"), "'hope' is not one of"),
    ],
)
def test_what_cannot_be_is_told_with_the_remedy(words: tuple[str, ...], told: str) -> None:
    assert told in refused(*words)


def test_flags_that_no_shell_reads_are_told() -> None:
    told = refused("decode", ANTIPHON_ENGINE_FLAGS="--seed '1")
    assert told.startswith("ANTIPHON_ENGINE_FLAGS = --seed '1: write it as for a shell")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("5-3", "'5-3' ends before it begins: write 3-5"),
        ("a-b", "'a-b' is no GPU: name them as 0-3"),
        ("-1", "'-1' is no GPU"),
        ("0,,1", "'' is no GPU"),
        ("1-", "'1-' is no GPU"),
        ("\u0664", "'\u0664' is no GPU"),
        ("0-999999999", "'0-999999999' is beyond 1023: name GPUs that this host has"),
        ("9" * 5000, "is no GPU"),
        ("0-2,1", "name 1 once"),
    ],
)
def test_gpus_that_are_none_are_told(given: str, told: str) -> None:
    for said in (
        refused("decode", "--preset", "gpu", f"--gpus={given}", "--print"),
        refused("decode", "--preset", "gpu", "--print", ANTIPHON_ENGINE_GPUS=given),
    ):
        assert said.startswith(f"gpus = {given}: ")
        assert told in said


@pytest.mark.parametrize("option", ["port", "side-channel-port"])
def test_a_port_that_is_taken_is_told_before_anything_is_loaded(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = refused("decode", "--model", "tiny", f"--{option}", port)
    assert f"{option.replace('-', '_')} = {port} on 127.0.0.1: something listens there" in told


def test_the_key_reaches_the_engine_and_is_never_printed() -> None:
    ran = CliRunner().invoke(
        app, ["engine", "decode", "--model", "tiny", "--print"], env={"ANTIPHON_ENGINE_KEY": "s3cret"}
    )
    assert 'VLLM_API_KEY="$VLLM_API_KEY"' in ran.output
    assert "s3cret" not in ran.output


@pytest.mark.parametrize(
    "words",
    [
        "--api-key s3cret",
        "--api-key=s3cret",
        "--api_key s3cret s3cret-too",
        "--api-k s3cret",
        "--hf-token s3cret",
        "--api-key s3cret --seed 1",
        "--api-key -1s3cret",
    ],
)
def test_a_secret_among_the_flags_is_never_printed(words: str) -> None:
    given = ["engine", "decode", "--model", "tiny", "--print"]
    by_flag = CliRunner().invoke(app, [*given, "--", *words.split()])
    by_variable = CliRunner().invoke(app, given, env={"ANTIPHON_ENGINE_FLAGS": words})
    assert by_flag.output == by_variable.output
    assert "s3cret" not in by_flag.output
    assert f'"${"HF_TOKEN" if "hf" in words else "VLLM_API_KEY"}"' in by_flag.stdout
    assert ("--seed 1" in by_flag.stdout) == ("--seed 1" in words)
    assert "s3cret" not in refused("decode", ANTIPHON_ENGINE_FLAGS=f"{words} '")


def test_the_process_becomes_the_engine_in_its_surroundings_and_ends_when_asked(
    fake_vllm: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    port = ports.search(port, ports.free, set(), width=2)
    output = tmp_path / "output"
    command = [sys.executable, "-m", "antiphon_server.cli", "engine", "decode", "--model", "tiny"]
    with output.open("w") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--side-channel-port", str(port + 1)],
            env={**fake_vllm, "MINE": "kept"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + PATIENCE_S
        while "Application startup complete" not in output.read_text():
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.05)
        found = re.search(r"startup complete (\d+)", output.read_text())
        assert found
        assert int(found[1]) == process.pid
        entries = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        assert {b"MINE=kept", b"UCX_TLS=tcp,sm,self"} <= set(entries)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        assert not os.path.exists(f"/proc/{process.pid}")
