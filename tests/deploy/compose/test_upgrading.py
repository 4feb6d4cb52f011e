"""The calls of docs/upgrading.md do what it says, and leave nothing in the way of the next upgrade."""

from __future__ import annotations

import asyncio
import re
import shlex
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette

from antiphon_server.router.errors import NotFoundError
from antiphon_server.router.state import State
from antiphon_server.router.surfaces.admin import Admin
from deploy.compose.project import services
from deploy.docker.dockerfile import ROOT

GUIDE = (ROOT / "docs" / "upgrading.md").read_text()
KEY = "k"


class Workers:
    """Writes down what it is asked to do."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    async def add(self, role: str, url: str) -> None:
        self.asked.append(("add", role, url))

    async def remove(self, role: str, url: str) -> None:
        self.asked.append(("remove", role, url))

    def drain(self, role: str, url: str) -> None:
        self.asked.append(("drain", role, url))

    def list(self) -> list[Any]:
        return []


def asked(key: str | None) -> list[tuple[str, str, str]]:
    """What the guide's calls, in their order, ask of a router with this admin key."""
    workers = Workers()
    settings = SimpleNamespace(admin_key=SecretStr(key) if key else None)
    admin = Admin(cast("State", SimpleNamespace(settings=settings, workers=workers)))
    asyncio.run(_send(Starlette(routes=admin.routes())))
    return workers.asked


async def _send(app: Starlette) -> None:
    lines = re.findall(r"curl (-X (?:.*\\\n)*.*)", GUIDE)
    assert lines
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as client:
        for line in lines:
            words = shlex.split(line.replace("\\\n", " ").replace("$ANTIPHON_ADMIN_KEY", KEY))
            method, url, header, body = words[1], words[2], words[4], words[6]
            name, _, value = header.partition(": ")
            answer = await client.request(method, url, headers={name: value}, content=body)
            assert answer.status_code == 200, line


def test_the_calls_replace_a_pair() -> None:
    assert asked(KEY) == [
        ("add", "prefill", "http://NEW-P:8100"),
        ("add", "decode", "http://NEW-D:8200"),
        ("drain", "decode", "http://OLD-D:8200"),
        ("drain", "prefill", "http://OLD-P:8100"),
        ("remove", "decode", "http://OLD-D:8200"),
        ("remove", "prefill", "http://OLD-P:8100"),
    ]


def test_the_key_that_the_calls_need_is_asked_for_before_them() -> None:
    with pytest.raises(NotFoundError, match="ANTIPHON_ADMIN_KEY"):
        asked(None)
    assert services("cpu")["router"]["environment"]["ANTIPHON_ADMIN_KEY"] == ""
    assert GUIDE.index("has `ANTIPHON_ADMIN_KEY`, which is unset by default") < GUIDE.index("curl ")


def test_names_that_are_taken_are_given_back() -> None:
    part = GUIDE.partition("## Compose\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"docker compose run .*--name (\S+)", part))
    (freed,) = re.findall(r"docker rm (.*)", part)
    assert named == set(freed.split()) == {"prefill-next", "decode-next"}


def test_the_image_of_the_new_pair_is_the_one_of_a_later_start() -> None:
    """A shell's variable would be gone by then, and the old version back."""
    assert "export " not in GUIDE
    services_of = services("gpu", ENGINE_GPU_IMAGE="antiphon/engine-gpu:0.2.0")
    assert services_of["decode-gpu"]["image"] in GUIDE


def test_images_of_the_new_version_are_made_before_they_run() -> None:
    """``docker compose run`` builds one that is missing, of whatever is checked out."""
    part = GUIDE.partition("## Compose\n")[2].partition("\n## ")[0]
    new = services("gpu", ENGINE_GPU_IMAGE="antiphon/engine-gpu:0.2.0", ROUTER_IMAGE="antiphon/router:0.2.0")
    assert all(new[name]["image"] in part and "build" in new[name] for name in ("router", "decode-gpu"))
    order = [
        part.index(word)
        for word in ("check out", "--profile gpu build", "docker compose run", "**The router**")
    ]
    assert order == sorted(order)


def test_each_way_of_hosts_drains_before_it_stops_and_leaves_nothing_enabled() -> None:
    part = GUIDE.partition("## systemd\n")[2].partition("\n## ")[0]
    _, new, in_place = re.split(r"\*\*(?:New hosts|In place)\b", part)
    for way, words in (
        (new, ("site.yaml", "prepare.sh", "start.sh", "Add ", "drain", "wait, remove", "stop.sh")),
        (in_place, ("Drain", "in_flight", "stop.sh", "prepare.sh", "start.sh", "check.sh", "Undrain")),
    ):
        assert sorted(way.index(word) for word in words) == [way.index(word) for word in words]
    stop = (ROOT / "server" / "deploy" / "efa" / "stop.sh").read_text()
    assert "systemctl disable --now" in stop
