"""``compose.yaml`` is what its specification allows, says what it needs in ``.env``, and hangs together."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon_server.router.config.options import options
from deploy.compose.project import COMPOSE, ENV, FOLDER, PROFILES, knobs, odd, project, services, used

PINNED = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+[\w.-]*")
ENGINES = [f"{role}-{profile}" for profile in ("cpu", "gpu", "efa") for role in ("prefill", "decode")]


def complaints(file: Path) -> str:
    """What the specification's schema has against a file."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_it_is_what_the_specification_allows() -> None:
    assert complaints(COMPOSE) == ""


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_rendered_is_what_the_specification_allows(profile: str, tmp_path: Path) -> None:
    rendered = tmp_path / "compose.yaml"
    chosen = services(profile, ANTIPHON_STORE="redis://redis:6379/0")
    assert chosen
    rendered.write_text(yaml.safe_dump({**project(), "services": chosen}))
    assert complaints(rendered) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("healthcheck:", "health_check:"), ("condition: service_healthy", "condition: healthy")],
)
def test_the_specification_would_not_allow_everything(right: str, wrong: str, tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(COMPOSE.read_text().replace(right, wrong))
    assert complaints(broken)


def test_up_alone_starts_prefill_decode_and_router_on_cpu() -> None:
    """Docker Compose takes profiles from ``COMPOSE_PROFILES`` in ``.env`` unless ``--profile`` is given."""
    assert knobs()["COMPOSE_PROFILES"] == "cpu"
    running = services(knobs()["COMPOSE_PROFILES"])
    assert set(running) == {"router", "prefill-cpu", "decode-cpu"}
    assert running["router"]["ports"] == ["127.0.0.1:8000:8000"]


def test_every_variable_stands_in_env_with_its_default_and_the_other_way_round() -> None:
    assert odd() == []
    defaults = dict(used())
    assert [found for found in used() if defaults[found[0]] != found[1]] == []
    assert {**defaults, "COMPOSE_PROFILES": "cpu"} == knobs()


def test_every_knob_has_a_comment() -> None:
    """Its own, or one with its next neighbours."""
    for block in re.split(r"^# .*$", ENV.read_text(), flags=re.MULTILINE):
        assert len(block.split()) <= 5, f"what are these? {block}"


def test_every_image_is_pinned() -> None:
    images = {name: one["image"] for name, one in services(*PROFILES).items()}
    bases = {value for name, value in knobs().items() if name in ("PYTHON_IMAGE", "VLLM_IMAGE")}
    assert len(bases) == 2
    assert [image for image in {*images.values(), *bases} if not PINNED.fullmatch(image)] == []


def test_what_is_waited_for_is_there_and_can_say_that_it_is_well() -> None:
    every = services(*PROFILES)
    waits = [
        (name, other, how) for name, one in every.items() for other, how in one.get("depends_on", {}).items()
    ]
    assert waits
    for name, other, how in waits:
        assert other in every, name
        assert how["condition"] == "service_healthy"
        assert "healthcheck" in every[other]
        together = set(every[name]["profiles"]) <= set(every[other]["profiles"])
        assert together or how["required"] is False, f"{name} cannot start without {other}"


def test_every_service_says_whether_it_is_well() -> None:
    for name, one in services(*PROFILES).items():
        check = one["healthcheck"]
        assert check["test"][0] == "CMD", name
        assert {"interval", "timeout", "retries", "start_period"} <= set(check), name


def test_ports_are_those_that_the_guides_name() -> None:
    every = services(*PROFILES)
    published = {name: one["ports"] for name, one in every.items() if "ports" in one}
    assert published == {
        "router": ["127.0.0.1:8000:8000"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    for name in ENGINES:
        port = "8100" if name.startswith("prefill") else "8200"
        assert every[name]["environment"]["ANTIPHON_ENGINE_PORT"] == port
        assert every[name]["healthcheck"]["test"][-1] == f"http://127.0.0.1:{port}/health"


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_router_and_prometheus_look_for_engines_where_they_are(profile: str) -> None:
    running = services(profile, "observability")
    answering = {"router:8000"}
    for role in ("prefill", "decode"):
        engine = running[f"{role}-{profile}"]
        (alias,) = engine["networks"]["default"]["aliases"]
        answering.add(f"{alias}:{engine['environment']['ANTIPHON_ENGINE_PORT']}")
    given = running["router"]["environment"]
    assert {given["ANTIPHON_PREFILL"], given["ANTIPHON_DECODE"], "http://router:8000"} == {
        f"http://{where}" for where in answering
    }
    groups = yaml.safe_load(project()["configs"]["targets"]["content"])
    assert set(chain.from_iterable(group["targets"] for group in groups)) == answering


def test_engines_of_efa_fit_on_one_host_and_have_what_efa_needs() -> None:
    running = services("efa")
    ports = [
        running[name]["environment"][f"ANTIPHON_ENGINE_{port}"]
        for name in ("prefill-efa", "decode-efa")
        for port in ("PORT", "SIDE_CHANNEL_PORT")
    ]
    assert len(set(ports)) == 4
    for name in ("prefill-efa", "decode-efa"):
        engine = running[name]
        assert engine["network_mode"] == "host"
        assert engine["privileged"] is True
        assert engine["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
        assert engine["devices"] == ["/dev/infiniband:/dev/infiniband"]
        assert engine["environment"]["ANTIPHON_ENGINE_ADDRESS"] == "auto"


def test_the_router_can_do_no_more_than_it_needs() -> None:
    for name in ("router", "router-efa"):
        router = services("cpu", "efa")[name]
        assert router["read_only"] is True
        assert router["cap_drop"] == ["ALL"]
        assert router["security_opt"] == ["no-new-privileges:true"]


def test_stopping_waits_for_turns_in_flight() -> None:
    grace = knobs()["ROUTER_STOP_GRACE"]
    assert int(grace.removesuffix("s")) > int(knobs()["ANTIPHON_SHUTDOWN_GRACE"])


def test_settings_of_the_router_exist_and_have_its_defaults() -> None:
    known = {option.variable: option for option in options()}
    for name in ("router", "router-efa"):
        given = services("cpu", "efa")[name]["environment"]
        assert set(given) <= set(known)
    for name, value in knobs().items():
        if name in known and name not in {"ANTIPHON_ENGINE_KEY", "ANTIPHON_API_KEYS", "ANTIPHON_ADMIN_KEY"}:
            assert _plain(known[name].default) == _plain(value), name


def _plain(value: str | None) -> str:
    return (value or "").replace(" ", "").replace("off", "false")


def test_no_secret_has_a_value_and_files_exist() -> None:
    assert [name for name, value in knobs().items() if value and re.search("TOKEN|_KEY$|_KEYS$", name)] == []
    mounted: list[Any] = [one.get("volumes", []) for one in services(*PROFILES).values()]
    sources = {volume.split(":")[0] for volume in chain.from_iterable(mounted)}
    files = {source for source in sources if source.startswith(".")}
    assert len(files) == 5
    assert [file for file in files if not (FOLDER / file).is_file()] == []
    assert sources - files == set(project()["volumes"])
