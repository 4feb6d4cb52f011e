"""Docker Compose itself reads the file as the tests do. It needs no container engine for that."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deploy.compose.project import FOLDER, PROFILES, services

LEAST = (2, 24)
"""Since then a file of variables may be missing (``env_file: required``)."""


@cache
def docker_compose() -> tuple[str, ...]:
    """How to call one that is new enough; empty where there is none."""
    beside = str(Path(sys.executable).parent)
    alone = shutil.which("docker-compose", path=f"{beside}:{os.environ.get('PATH', '')}")
    for command in (("docker", "compose"), (alone or "docker-compose",)):
        try:
            done = subprocess.run(
                [*command, "version", "--short"], capture_output=True, text=True, timeout=60
            )
        except OSError:
            continue
        version = tuple(int(part) for part in re.findall(r"\d+", done.stdout)[:2])
        if done.returncode == 0 and version >= LEAST:
            return command
    return ()


pytestmark = pytest.mark.skipif(
    not docker_compose(), reason="no Docker Compose 2.24 or later on this machine"
)


def asked(*words: str) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [*docker_compose(), *words], cwd=FOLDER, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "level=warning" not in done.stderr
    return done.stdout


def test_up_alone_takes_the_profile_of_env() -> None:
    assert set(asked("config", "--services").split()) == set(services("cpu"))


def test_a_star_stands_for_every_profile() -> None:
    """With it ``down`` finds what any ``up`` started (compose-go 175, before 2.0)."""
    assert set(asked("--profile", "*", "config", "--services").split()) == set(services(*PROFILES))


@pytest.mark.parametrize("profile", PROFILES)
def test_it_reads_each_profile_as_the_tests_do(profile: str) -> None:
    written = asked("--profile", profile, "config", "--format", "json").replace("$$", "$")
    theirs = json.loads(written)["services"]
    ours = services(profile)
    assert set(theirs) == set(ours)
    for name, one in ours.items():
        assert plain(theirs[name]) == plain(one), name


def plain(service: dict[str, Any]) -> dict[str, Any]:
    """What can be compared: they write some values in longer forms."""
    alike = (
        "command",
        "environment",
        "image",
        "network_mode",
        "privileged",
        "cap_add",
        "cap_drop",
        "read_only",
    )
    build = service.get("build", {})
    return {
        **{key: service[key] for key in alike if service.get(key) is not None},
        "check": service["healthcheck"]["test"],
        "waits": {other: how["condition"] for other, how in service.get("depends_on", {}).items()},
        "build": (build.get("target"), build.get("args")),
    }
