"""Sites to render."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from antiphon_server.deploy.host_files import HostFiles, render_hosts
from antiphon_server.deploy.read import read
from rig.recipe import ROOT

EXAMPLES = ROOT / "server" / "deploy" / "efa"


class Sites:
    """Writes a site's file and reads it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "site.yaml"

    def hosts(self, written: dict[str, Any]) -> dict[str, HostFiles]:
        """Rendered, by name."""
        self.file.write_text(yaml.safe_dump(written, sort_keys=False))
        return {one.name: one for one in render_hosts(read(self.file))}


def variables(text: str) -> dict[str, str]:
    """An environment file as a shell reads it; systemd's rules for what is rendered are the same."""
    script = "set -a; . /dev/stdin; exec env -0"
    ran = subprocess.run(
        ["env", "-i", "bash", "--norc", "-c", script], input=text, capture_output=True, text=True, check=True
    )
    found = dict(line.split("=", 1) for line in ran.stdout.rstrip("\0").split("\0"))
    return {name: value for name, value in found.items() if name not in {"PWD", "SHLVL", "_", "OLDPWD"}}
