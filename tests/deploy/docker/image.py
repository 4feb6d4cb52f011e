"""A stage of the Dockerfile made without a container engine: its files and packages in folders of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.docker.dockerfile import ROOT, Stage, stages

PACKAGES = "/opt/antiphon"
FOLDERS = ("/src", "/wheels", PACKAGES)
"""What the stages of the router write to; each is put below the folder of the image."""


@dataclass(frozen=True)
class Image:
    """``root``: what stands for ``/``."""

    root: Path
    stage: Stage

    def command(self, words: list[str]) -> list[str]:
        """With the program that the image's ``PATH`` would find."""
        return [str(self.root / PACKAGES[1:] / "bin" / words[0]), *words[1:]]

    def environ(self, given: Mapping[str, str]) -> dict[str, str]:
        """Nothing of this process's: the image's environment, then what a container is given."""
        own = {name: value for name, value in self.stage.env.items() if name != "PATH"}
        return {"PATH": os.defpath, **own, **given}

    @contextmanager
    def container(self, words: list[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """The image's entry point with ``words`` behind it; killed at the end."""
        command = self.command([*self.stage.entrypoint, *words])
        with subprocess.Popen(command, env=self.environ(environ), cwd=self.root) as process:
            try:
                yield process
            finally:
                process.kill()

    def well(self, check: list[str]) -> bool:
        """Whether a health check says so. ``check``: a command, without the word CMD."""
        command = self.command(check)
        done = subprocess.run(command, env=self.environ({}), cwd=self.root, capture_output=True, timeout=30)
        return done.returncode == 0


def router(root: Path) -> Image:
    """The router's image, its packages installed by the very lines that the Dockerfile has."""
    found = stages()
    programs = root / "programs"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    for name in ("wheel", "router-packages"):
        for what, value in found[name].steps:
            if what == "COPY" and not value.startswith("--from="):
                *sources, target = value.split()
                _copy(sources, root / "src" / target)
            elif what == "RUN":
                _run(value, root, programs)
    return Image(root, found["router"])


def _copy(sources: list[str], target: Path) -> None:
    for source in map(ROOT.joinpath, sources):
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def _run(line: str, root: Path, programs: Path) -> None:
    moved = re.sub(rf"(?<![\w/.])({'|'.join(FOLDERS)})\b", lambda found: f"{root}{found[1]}", line)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VIRTUAL_ENV")}
    environ["PATH"] = f"{programs}:{environ['PATH']}"
    (root / "src").mkdir(exist_ok=True)
    done = subprocess.run(
        ["sh", "-ec", moved], cwd=root / "src", env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{moved}\n{done.stdout}\n{done.stderr}"
