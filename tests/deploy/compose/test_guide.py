"""docs/compose.md and docs/upgrading.md name services, knobs and images that are there."""

from __future__ import annotations

import re

import pytest

from antiphon_server.router.config.settings import RouterSettings
from deploy.compose.project import PROFILES, knobs, services
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
        assert set(chosen) <= set(PROFILES), words
        engines = {word for word in words if re.fullmatch(r"[a-z]+-(?!next)[a-z]+", word)}
        assert engines <= set(known), words
        if chosen:
            assert all(set(known[name]["profiles"]) & set(chosen) for name in engines), words


def test_knobs_exist() -> None:
    named = set(re.findall(r"`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`]*)?`", GUIDE))
    assert len(named) > 20
    settings = {f"ANTIPHON_{name.upper()}" for name in RouterSettings.model_fields}
    assert named - set(knobs()) <= settings


def test_every_profile_and_image_is_told_of() -> None:
    for name in (*PROFILES, *(stage for stage in stages() if stage.startswith(("router", "engine")))):
        assert f"| `{name}`" in GUIDE or name == "router-packages"


def test_a_key_is_asked_for_where_engines_listen_to_their_host() -> None:
    part = GUIDE.partition("## Two hosts with EFA")[2].partition("\n## ")[0]
    assert services("efa")["prefill-efa"]["environment"]["ANTIPHON_ENGINE_HOST"] == "0.0.0.0"
    assert "set `ANTIPHON_ENGINE_KEY`" in part
