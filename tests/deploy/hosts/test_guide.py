"""What the guide tells people to type and to write exists."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Any

import click
import pytest
import typer
import yaml

from antiphon_server.cli import app
from antiphon_server.deploy.site import Engines, Host, Site
from antiphon_server.deploy.steps import FIRST_START_S
from deploy.hosts.sites import EXAMPLES
from rig.recipe import ROOT

GUIDE = (ROOT / "docs" / "efa.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
SITES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)]
SEPARATORS = re.compile(r"\||;|&&|&|\n")
PREPARE = (EXAMPLES / "prepare.sh").read_text()


def test_sites_of_the_guide_are_the_examples() -> None:
    one, larger = (yaml.safe_load((EXAMPLES / name).read_text()) for name in ("site.yaml", "site-fleet.yaml"))
    assert SITES[0] == one
    assert {key: larger[key] for key in ("hosts", "engines")} == {
        key: SITES[1][key] for key in ("hosts", "engines")
    }
    assert SITES[1]["router"].items() <= larger["router"].items()


def test_every_key_of_a_site_is_explained() -> None:
    table = GUIDE.partition("| key | default | |")[2].partition("\n\n")[0]
    explained = set(re.findall(r"[a-z_]+", table))
    assert {*Site.model_fields, *Host.model_fields, *Engines.model_fields} - {
        "kv_space",
        "threads",
    } <= explained


@pytest.mark.parametrize("block", SHELL, ids=range(len(SHELL)))
def test_commands_are_what_a_shell_can_read(block: str) -> None:
    ran = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def ours() -> list[list[str]]:
    """Every call of ``antiphon`` in the guide, as words."""
    found: list[list[str]] = []
    for block in SHELL:
        for line in SEPARATORS.split(block.replace("\\\n", " ")):
            call = re.search(r"(?:^|[\s/])antiphon ([a-z].*)", line.partition(" #")[0])
            if call:
                found.append(shlex.split(re.split(r"\s\d?>", call[1])[0].replace("$", "")))
    return found


@pytest.mark.parametrize("words", ours(), ids=" ".join)
def test_options_of_our_commands_are_there(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    used = {word for word in rest if word.startswith("--")}
    assert used <= known


def test_guide_calls_our_commands_at_all() -> None:
    assert {words[0] for words in ours()} == {"hosts", "doctor", "router", "bench"}


def test_scripts_are_called_as_they_are_named() -> None:
    called = set(re.findall(r"antiphon/(\w+\.sh)", "\n".join(SHELL)))
    assert called == {path.name for path in EXAMPLES.glob("*.sh")} - {"common.sh"}


@pytest.mark.parametrize("name", ["VLLM_VERSION", "NIXL_VERSION", "EFA_INSTALLER_VERSION", "PYTHON_VERSION"])
def test_versions_are_those_that_are_installed(name: str) -> None:
    (default,) = re.findall(rf'^{name}="\$\{{{name}:-(.*)\}}"$', PREPARE, re.MULTILINE)
    assert re.search(rf"`{name}`\s+\({re.escape(default)}[;)]", GUIDE)


def test_the_wait_for_a_first_start_is_the_same_everywhere() -> None:
    start = (EXAMPLES / "start.sh").read_text()
    assert {int(found) for found in re.findall(r"--wait (\d+)", GUIDE + start)} == {FIRST_START_S}


def test_scripts_name_steps_of_the_guide_that_tell_of_it() -> None:
    (number,) = re.findall(r"docs/efa\.md, step (\d)", PREPARE)
    step = GUIDE.partition(f"\n## {number}. ")[2].partition("\n## ")[0]
    assert "NVIDIA's driver" in step


def test_no_ssh_swallows_the_commands_behind_it() -> None:
    """One with a command may read only what is piped into it; one without is for people."""
    lines = [line.strip() for block in SHELL for line in re.split(r";|\n", block)]
    called = [line for line in lines if re.match(r"ssh (-n )?ubuntu@\S+ +[^ #]", line)]
    assert len(called) > 5
    assert [line for line in called if not line.startswith("ssh -n ")] == []


def test_engines_are_asked_from_hosts_alone() -> None:
    """The desk need not reach their ports: before such a command stands an ssh into a host."""
    for block in SHELL:
        before, found, _ = block.partition(":8100")
        assert not found or re.search(r"^ssh ubuntu@\S+(\s+#.*)?$", before, re.MULTILINE), block
