"""Fleets without a fault, as files: what ``antiphon up --print`` shows, and what server/deploy has."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import yaml
from typer.testing import CliRunner

from antiphon_server.cli import app
from antiphon_server.deploy.host_files import render_hosts
from antiphon_server.deploy.read import read as read_site
from antiphon_server.doctor.declared.examine import examine
from antiphon_server.doctor.declared.manifests import read
from antiphon_server.doctor.finding import Examination, together
from antiphon_server.stack.ports import allocate
from deploy.compose.project import COMPOSE, ENV
from deploy.hosts.sites import EXAMPLES
from deploy.kubernetes.render import MANIFESTS, kustomize, rendered

UP = {"cpu": (), "gpu": (), "efa": ("--address", "10.0.0.7")}
SITES = ("site.yaml", "site-fleet.yaml")
KEY = "ANTIPHON_ENGINE_KEY"
ROOT = EXAMPLES.parents[2]

Files = Mapping[str, str]
"""Texts by path in a folder. The folder is the target."""


@dataclass(frozen=True)
class Good:
    """``name``: how the table of faults calls it."""

    name: str
    files: Files


@cache
def up(preset: str) -> Good:
    """What ``antiphon up --print`` shows. Keys stand there as variables."""
    # Whatever else listens on this machine.
    with patch("antiphon_server.stack.ports.allocate", partial(allocate, is_free=lambda port: True)):
        ran = CliRunner().invoke(app, ["up", "--preset", preset, "--print", *UP[preset]], env={KEY: "k-e-y"})
    assert ran.exit_code == 0, ran.output
    return Good(f"up {preset}", {"stack.sh": ran.stdout})


@cache
def engines() -> Good:
    """Two engines of one machine, as ``antiphon engine --print`` shows them; the router is elsewhere."""
    words = (["prefill"], ["decode", "--side-channel-port", "5620"])
    shown = [CliRunner().invoke(app, ["engine", *each, "--print"]).stdout for each in words]
    return Good("engines", {"stack.sh": "".join(shown)})


@cache
def compose() -> Good:
    """The compose file with its ``.env`` and a key, as docs/compose.md asks for between hosts."""
    env = ENV.read_text()
    assert f"\n{KEY}=\n" in env
    return Good(
        "compose", {"compose.yaml": COMPOSE.read_text(), ".env": env.replace(f"\n{KEY}=", f"\n{KEY}=k-e-y")}
    )


@cache
def units(site: str = SITES[0]) -> Good:
    """A site's units and environment files."""
    hosts = render_hosts(read_site(EXAMPLES / site))
    return Good("units", {f"{one.name}/{path}": text for one in hosts for path, text in one.files.items()})


@cache
def overlay(name: str, folder: Path) -> Good:
    """A Kubernetes overlay, rendered. ``folder``: where the renderer is unpacked."""
    objects = rendered(kustomize(folder), MANIFESTS / "overlays" / name)
    return Good(f"kubernetes {name}", {"fleet.yaml": yaml.safe_dump_all(objects, sort_keys=False)})


def write(files: Files, folder: Path) -> Path:
    """The folder, with the files in it."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        if Path(path).name == ".env":  # the place of keys
            (folder / path).chmod(0o600)
    return folder


def looked_at(folder: Path) -> Examination:
    """What the doctor says to it. Nothing of this machine's environment counts."""
    with contextlib.redirect_stdout(io.StringIO()):
        return together([examine(scene.declared) for scene in read([folder], {})])
