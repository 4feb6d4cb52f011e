"""What containers run is what ``antiphon up`` starts, and their commands do what they are there for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from antiphon_server.environment import ENGINE_VARIABLES
from deploy.compose.project import PROFILES, Service, knobs, services
from rig.printed import Printed, commands

ROLES = ("prefill", "decode")
OWN_ADDRESS = "10.0.0.7"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings and models of the developer's own."""
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "cache"))


def engines() -> dict[str, Service]:
    return {name: one for name, one in services(*PROFILES).items() if name.startswith(ROLES)}


def test_engines_are_given_only_what_the_command_reads() -> None:
    assert len(engines()) == 6
    for name, one in engines().items():
        assert set(one["environment"]) - {"HF_TOKEN"} <= set(ENGINE_VARIABLES), name
        assert one["command"] == [name.partition("-")[0]]


def of_compose(role: str, profile: str, **given: str) -> Printed:
    """The engine of a service, on one machine with the others as ``antiphon up`` has them."""
    service = services(profile, **given)[f"{role}-{profile}"]
    alone = {"ANTIPHON_ENGINE_HOST": "", "ANTIPHON_ENGINE_ADDRESS": OWN_ADDRESS if profile == "efa" else ""}
    environ = {**service["environment"], **alone}
    (printed,) = commands("engine", *service["command"], environ=environ).values()
    return printed


def of_up(role: str, profile: str, *words: str) -> Printed:
    return commands("up", "--preset", profile, *words)[f"{role}-0"]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("profile", ["cpu", "gpu", "efa"])
def test_an_engine_in_a_container_is_the_one_that_up_starts(profile: str, role: str) -> None:
    tensor = {"cpu": "1", "gpu": "1", "efa": "8"}[profile]
    model = knobs()[f"{profile.upper()}_MODEL"]
    words = ["--model", model, "--tensor-parallel", tensor]
    words += ["--address", OWN_ADDRESS] if profile == "efa" else []
    started = of_up(role, profile, *words)
    place = {
        "ANTIPHON_ENGINE_THREADS": started.env.get("OMP_NUM_THREADS", ""),
        "EFA_PREFILL_GPUS": "0-7",
        "EFA_DECODE_GPUS": "8-15",
        f"{role.upper()}_PORT": started.argv[started.argv.index("--port") + 1],
        f"{role.upper()}_SIDE_CHANNEL_PORT": started.env["VLLM_NIXL_SIDE_CHANNEL_PORT"],
    }
    assert of_compose(role, profile, **place) == started


def test_a_knob_reaches_the_engine() -> None:
    given = {"ANTIPHON_ENGINE_MAX_MODEL_LEN": "512", "ANTIPHON_ENGINE_PREFILL_CACHE": "false"}
    given |= {"CPU_MODEL": "tiny", "PREFILL_FLAGS": "--seed 7"}
    argv = of_compose("prefill", "cpu", **given).argv
    assert argv[argv.index("--max-model-len") + 1] == "512"
    assert "--no-enable-prefix-caching" in argv
    assert argv[-2:] == ("--seed", "7")


def redis(store: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The command of the service, with a program that says how it was called for ``redis-server``."""
    service = services("redis", ANTIPHON_STORE=store)["redis"]
    server = tmp_path / "redis-server"
    server.write_text('#!/bin/sh\necho "started: $*"\n')
    server.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **service["environment"]}
    return subprocess.run(service["command"], env=environ, capture_output=True, text=True, check=False)


def test_redis_runs_where_the_router_uses_it(tmp_path: Path) -> None:
    done = redis("redis://redis:6379/0", tmp_path)
    assert done.stdout == "started: --save  --appendonly no\n"
    router = services("cpu", "redis", ANTIPHON_STORE="redis://redis:6379/0")["router"]
    assert router["environment"]["ANTIPHON_STORE"] == "redis://redis:6379/0"


def test_redis_that_no_router_would_use_says_what_to_set(tmp_path: Path) -> None:
    done = redis("memory", tmp_path)
    assert done.returncode == 1
    assert "ANTIPHON_STORE = memory: set ANTIPHON_STORE=redis://redis:6379/0" in done.stderr
