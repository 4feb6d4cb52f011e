"""docs/compose.md and docs/upgrading.md name services, knobs and images that are there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from antiphon_server.doctor.declared.examine import examine
from antiphon_server.doctor.declared.manifests import read
from antiphon_server.doctor.finding import Severity
from antiphon_server.router.config.settings import RouterSettings
from deploy.compose.project import FOLDER, PROFILES, knobs, services
from deploy.docker.dockerfile import ROOT, stages

GUIDES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("compose", "upgrading")}
GUIDE = GUIDES["compose"]


def calls(guide: str) -> list[list[str]]:
    """The words behind ``docker compose``, wherever it stands."""
    found = re.findall(r"docker compose ([^`\n#|&]*)", GUIDES[guide])
    return [line.split() for line in found]


@pytest.mark.parametrize("guide", GUIDES)
def test_services_and_profiles_of_commands_exist(guide: str) -> None:
    known = services(*PROFILES)
    given = calls(guide)
    assert given
    for words in given:
        chosen = [words[at + 1] for at, word in enumerate(words) if word == "--profile"]
        if chosen == ['"*"']:
            chosen = list(PROFILES)
        assert set(chosen) <= set(PROFILES), words
        engines = {word for word in words if re.fullmatch(r"[a-z]+-(?!next)[a-z]+", word)}
        assert engines <= set(known), words
        if chosen:
            assert all(set(known[name]["profiles"]) & set(chosen) for name in engines), words


CLIENTS = {"ANTIPHON_API_KEY", "OPENAI_API_KEY"}
"""Where the doctor and the benchmark look for a client's key."""


def test_knobs_exist() -> None:
    named = set(re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`]*)?`", GUIDE))
    assert len(named) > 20
    settings = {f"ANTIPHON_{name.upper()}" for name in RouterSettings.model_fields}
    assert named - set(knobs()) <= settings | CLIENTS


def test_every_profile_and_image_is_told_of() -> None:
    for name in (*PROFILES, *(stage for stage in stages() if stage.startswith(("router", "engine")))):
        assert f"| `{name}`" in GUIDE or name == "router-packages"


def test_down_names_every_profile() -> None:
    """Those of ``.env`` are not those that were started by ``--profile``."""
    ends = [words for guide in GUIDES for words in calls(guide) if "down" in words]
    assert ends == [["--profile", '"*"', "down"]]


def efa() -> str:
    return GUIDE.partition("## Two hosts with EFA")[2].partition("\n## ")[0]


def warned(folder: Path) -> set[str]:
    """What the doctor warns of, by its check."""
    found = [finding for scene in read([folder]) for finding in examine(scene.declared).findings]
    return {finding.check for finding in found if finding.severity is not Severity.NOTE}


def test_engines_that_listen_to_their_host_get_a_key_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert services("efa")["prefill-efa"]["environment"]["ANTIPHON_ENGINE_HOST"] == "0.0.0.0"
    for name in ("compose.yaml", ".env"):
        shutil.copy(FOLDER / name, tmp_path)
    monkeypatch.delenv("ANTIPHON_ENGINE_KEY", raising=False)
    monkeypatch.setenv("COMPOSE_PROFILES", "efa")
    assert "engine-exposed" in warned(tmp_path)
    steps = efa().partition("```\n")[2].partition("```")[0]
    lines = re.findall(r"^ *((?:chmod|sed) .*)$", steps, re.MULTILINE)
    subprocess.run(["sh", "-ec", "\n".join(lines)], cwd=tmp_path, check=True, timeout=60)
    assert re.search(r"^ANTIPHON_ENGINE_KEY=[0-9a-f]{64}$", (tmp_path / ".env").read_text(), re.MULTILINE)
    assert warned(tmp_path) & {"engine-exposed", "plain-secret"} == set()
    assert re.search(r"^ *scp -p ", steps, re.MULTILINE), "the copy is to be as closed"
    order = [
        steps.index(word)
        for word in ("chmod", "sed", "antiphon doctor", " build", "docker save", "scp", " up ")
    ]
    assert order == sorted(order)


def test_the_second_host_gets_the_images_that_its_services_run() -> None:
    (sent,) = re.findall(r"docker save (.*) \|", efa())
    assert set(sent.split()) == {one["image"] for one in services("efa").values()}


def test_the_router_is_opened_after_there_are_keys() -> None:
    assert services("efa")["router-efa"]["environment"]["ANTIPHON_HOST"] == "127.0.0.1"
    assert efa().index("`ANTIPHON_API_KEYS`") < efa().index("`ROUTER_BIND=")
