"""The guide's last commands, in a shell that knows nothing of the first, end all that was begun."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from rig.recipe import ROOT

GUIDE = (ROOT / "docs" / "efa.md").read_text()
LAUNCH = GUIDE.partition("## 1. Launch")[2].partition("\n## ")[0]
END = GUIDE.partition("## Stop and clean up")[2]


def calls(tmp_path: Path) -> list[str]:
    """What the commands ask of AWS, which has instances and a group."""
    log = tmp_path / "calls"
    answers = 'case "$2" in describe-instances) echo i-1 i-2 ;; describe-security-groups) echo sg-1 ;; esac'
    for name, body in (("aws", f'echo "$*" >> {log}; {answers}'), ("ssh", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = "\n".join(["set -euo pipefail", *re.findall(r"```bash\n(.*?)```", END, re.DOTALL)])
    environ = {"PATH": f"{tmp_path}:{os.defpath}", "VPC": "vpc-1"}
    ran = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return log.read_text().splitlines()


def test_it_finds_and_ends_what_was_launched(tmp_path: Path) -> None:
    asked = calls(tmp_path)
    assert "ec2 terminate-instances --instance-ids i-1 i-2" in asked
    assert asked[-1] == "ec2 delete-security-group --group-id sg-1"
    (leaves,) = (at for at, call in enumerate(asked) if "modify-instance-attribute" in call)
    assert leaves < len(asked) - 1, "a group with somebody in it stays"


def test_it_looks_for_the_names_that_were_given() -> None:
    (tag,) = re.findall(r"Tags=\[\{Key=Name,Value=(\w+)\}\]", LAUNCH)
    (group,) = re.findall(r"create-security-group --group-name (\w+)", LAUNCH)
    assert f"Name=tag:Name,Values={tag} " in END
    assert f"Name=group-name,Values={group} " in END
