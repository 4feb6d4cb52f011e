"""A target on the command line: a file or a folder, read by what it holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from antiphon_server.doctor.declared.box import Box
from antiphon_server.doctor.declared.declared import Declared, Router
from antiphon_server.doctor.declared.manifests.compose import compose
from antiphon_server.doctor.declared.manifests.kubernetes import kubernetes
from antiphon_server.doctor.declared.manifests.scene import ManifestError, Scene
from antiphon_server.doctor.declared.manifests.shell import shell
from antiphon_server.doctor.declared.manifests.systemd import units

MANIFESTS = (".yaml", ".yml", ".service", ".sh")
REMEDY = (
    "give a compose file, rendered Kubernetes manifests, systemd units, shell lines of "
    "'antiphon up --print', a router's YAML file, or a folder of them"
)


def read(targets: Iterable[Path], environ: Mapping[str, str] = os.environ) -> list[Scene]:
    """What the targets declare: files that belong together as one scene, others for themselves.

    Raises:
        ManifestError: a target is not there, cannot be read, or declares nothing of ours.
    """
    scenes: list[Scene] = []
    for target in targets:
        found = [scene for path in _files(target) for scene in _understood(path, target, environ)]
        if not any(scene.declared or scene.declared.unread for scene in found):
            raise ManifestError(f"{target} declares no engine, router or store: {REMEDY}")
        scenes += [scene for scene in found if scene.declared or scene.declared.unread]
    together = [scene for scene in scenes if scene.joins]
    alone = [scene for scene in scenes if not scene.joins]
    if together:
        name = ", ".join(dict.fromkeys(scene.name for scene in together))
        alone.insert(0, Scene(name, sum((scene.declared for scene in together), Declared())))
    return alone


def _files(target: Path) -> Iterator[Path]:
    if not target.exists():
        raise ManifestError(f"{target} is not there: {REMEDY}")
    if target.is_dir():
        yield from sorted(each for each in target.rglob("*") if each.suffix in MANIFESTS and each.is_file())
    else:
        yield target


def _understood(path: Path, target: Path, environ: Mapping[str, str]) -> list[Scene]:
    try:
        return list(_scenes(path, target, environ))
    except ManifestError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # A list where a mapping belongs, words where a number does: schemas tell that better.
        raise ManifestError(f"{path} is not of its form ({error}): validate it against its schema") from error


def _scenes(path: Path, target: Path, environ: Mapping[str, str]) -> Iterator[Scene]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} cannot be read ({error}): {REMEDY}") from None
    if path.suffix == ".service":
        # Units of several hosts are rendered into a folder for each host.
        host = path.parent.name if target.is_dir() else "this host"
        yield units(path, text, host)
        return
    documents = _yaml(path, text) if path.suffix in (".yaml", ".yml") else None
    if documents is None:
        yield shell(path, text)
        return
    if any(one.get("kind") in ("Kustomization", "Component") for one in documents):
        raise ManifestError(
            f"{path} is for kustomize: render it first ('kubectl kustomize DIR > fleet.yaml')"
        )
    if any("hosts" in one and "kind" not in one for one in documents):
        raise ManifestError(
            f"{path} is a site: render it first ('antiphon hosts {path}'), and name the folder"
        )
    kinds = [one for one in documents if "kind" in one and "apiVersion" in one]
    if kinds:
        yield kubernetes(path, kinds)
    elif any("services" in one for one in documents):
        yield from compose(path, next(one for one in documents if "services" in one), environ)
    elif documents and set(documents[0]) & {"prefill", "decode", "discover_prefill", "discover_decode"}:
        box = Box(manager="shell", network="router")
        yield Scene(path.name, Declared(routers=(Router(path.name, {}, {}, box, path),)))


def _yaml(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        return [one for one in yaml.safe_load_all(text) if isinstance(one, dict)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark is not None else ""
        raise ManifestError(f"{path} is not YAML{place}: correct it, or render templates first") from None
