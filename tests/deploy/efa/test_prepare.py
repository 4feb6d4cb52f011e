"""A host that is prepared again runs the wheel that was copied last."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from deploy.efa.host import Host

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
NAME = "antiphon-9.9-py3-none-any.whl"
INFO = "antiphon-9.9.dist-info"


def wheel(folder: Path, text: str) -> None:
    """Of one version always; only what it holds differs."""
    files = {
        "antiphon/__init__.py": f"SAYS = {text!r}\n",
        f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: antiphon\nVersion: 9.9\n"
        "Provides-Extra: router\nProvides-Extra: bench\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{INFO}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{INFO}/RECORD"])
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def test_a_mended_wheel_of_the_same_version_is_installed(tmp_path: Path) -> None:
    host = Host(
        tmp_path, f"PRESET=efa\nENGINES=\nENGINE_URLS=\nROUTER_URL=http://r\nCACHE={tmp_path}/cache\n"
    )
    for name in ("apt-get", "dnf", "useradd", "install"):
        host.program(name, "exit 0")
    host.program("id", "echo 0")  # root, and the user is there
    host.program(f"python{VERSION}", f'exec {sys.executable} "$@"')
    environ = {"PYTHON_VERSION": VERSION, "PIP_NO_INDEX": "1"}
    for text in ("first", "mended"):
        wheel(host.folder, text)
        # Not the PATH of this process: it may have uv, which the script prefers.
        ran = host.run("prepare.sh", path=os.defpath, environ=environ)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        says = [str(host.prefix / "venv" / "bin" / "python"), "-Ic", "import antiphon; print(antiphon.SAYS)"]
        asked = subprocess.run(says, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        assert asked.stdout == f"{text}\n"


def test_so_it_is_where_uv_installs(tmp_path: Path) -> None:
    host = Host(tmp_path, "PRESET=efa\nENGINES=\nENGINE_URLS=\nROUTER_URL=http://r\n")
    host.program("uv", "exit 1")
    assert "--reinstall-package antiphon" in host.run("prepare.sh", "--dry-run").stdout
