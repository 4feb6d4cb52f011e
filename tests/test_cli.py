"""The command as a whole."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from antiphon_server.cli import app


@pytest.mark.parametrize("name", ["up", "engine", "router", "demo", "bench", "replay", "advise"])
def test_help_lists_every_subcommand(name: str) -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    assert name in shown.output.split()


def test_command_without_its_packages_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; import antiphon_server.cli"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.strip().endswith("pip install 'antiphon[router]'")
    assert "Traceback" not in ran.stderr
