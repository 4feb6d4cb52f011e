"""A target on the command line: a file or a folder, read by what it holds."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from antiphon_server.doctor.declared.box import Box
from antiphon_server.doctor.declared.command_line import unread_file
from antiphon_server.doctor.declared.declared import Declared, Router
from antiphon_server.doctor.declared.files import READER, UnreadError, documents, text_of
from antiphon_server.doctor.declared.manifests.compose import WHOLE, compose, merged_into
from antiphon_server.doctor.declared.manifests.kubernetes import kubernetes
from antiphon_server.doctor.declared.manifests.scene import ManifestError, Scene
from antiphon_server.doctor.declared.manifests.shell import shell
from antiphon_server.doctor.declared.manifests.systemd import units
from antiphon_server.doctor.finding import Severity

MANIFESTS = (".yaml", ".yml", ".service", ".sh")
MOST_FILES = 20_000
"""In a folder that is named, those that are no manifests included."""
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
        if not any(map(_tells, found)):
            said = next((each for scene in found for each in scene.declared.unread), None)
            why = f"{said.what}: {said.remedy}" if said else REMEDY
            raise ManifestError(f"{target} declares no engine, router or store: {why}")
        scenes += [scene for scene in found if scene.declared or scene.declared.unread]
    together = [scene for scene in scenes if scene.joins]
    alone = [scene for scene in scenes if not scene.joins]
    if together:
        name = ", ".join(dict.fromkeys(scene.name for scene in together))
        alone.insert(0, Scene(name, sum((scene.declared for scene in together), Declared())))
    return alone


def _tells(scene: Scene) -> bool:
    """There is something to judge, or a fault in the reading. What is only not seen is neither."""
    return bool(scene.declared) or any(each.severity is not Severity.NOTE for each in scene.declared.unread)


def _files(target: Path) -> list[Path]:
    try:
        folder = stat.S_ISDIR(target.stat().st_mode)
        if folder:
            os.scandir(target).close()
    except (FileNotFoundError, NotADirectoryError):
        raise ManifestError(f"{target} is not there: {REMEDY}") from None
    except OSError as error:
        remedy = READER if isinstance(error, PermissionError) else REMEDY
        raise ManifestError(f"{target} cannot be looked at ({error.strerror}): {remedy}") from None
    return sorted(_within(target)) if folder else [target]


def _within(folder: Path) -> Iterator[Path]:
    """Its files that may be manifests. What vanishes meanwhile, or may not be entered, is left out."""
    seen = 0
    for place, _, names in os.walk(folder):
        seen += 1 + len(names)
        if seen > MOST_FILES:
            raise ManifestError(
                f"{folder} holds more than {MOST_FILES} files: name the folder of the manifests"
            )
        yield from (
            each for name in names if (each := Path(place, name)).suffix in MANIFESTS and each.is_file()
        )


def _understood(path: Path, target: Path, environ: Mapping[str, str]) -> list[Scene]:
    try:
        return list(_scenes(path, target, environ))
    except ManifestError:
        raise
    except RecursionError:
        raise ManifestError(f"{path} is nested too deeply: correct it") from None
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        # A list where a mapping belongs, words where a number does: schemas tell that better.
        raise ManifestError(f"{path} is not of its form ({error}): validate it against its schema") from error


def _scenes(path: Path, target: Path, environ: Mapping[str, str]) -> Iterator[Scene]:
    try:
        text = text_of(path)
    except UnreadError as error:
        if path != target:
            if not error.missing:
                said = unread_file(path.name, error, "what it declares was")
                # It was to be looked at, and was not.
                yield Scene(path.name, Declared(unread=(replace(said, severity=Severity.WARNING),)))
            return
        raise ManifestError(f"{error}: {error.remedy}") from None
    if path.suffix == ".service":
        # Units of several hosts are rendered into a folder for each host.
        host = path.parent.name if target.is_dir() else "this host"
        yield units(path, text, host)
        return
    if path.suffix not in (".yaml", ".yml", ".json"):
        yield shell(path, text)
        return
    found = _mappings(path, text)
    if any(one.get("kind") in ("Kustomization", "Component") for one in found):
        raise ManifestError(
            f"{path} is for kustomize: render it first ('kubectl kustomize DIR > fleet.yaml')"
        )
    if any("hosts" in one and "kind" not in one for one in found):
        raise ManifestError(
            f"{path} is a site: render it first ('antiphon hosts {path}'), and name the folder"
        )
    if near := next(filter(None, map(_almost_a_site, found)), None):
        raise ManifestError(f"{path} looks like a site: did you mean hosts instead of {near}?")
    kinds = [one for one in found if "kind" in one and "apiVersion" in one]
    if kinds:
        yield kubernetes(path, kinds)
    elif any("services" in one for one in found):
        if base := merged_into(path):
            if path == target:
                raise ManifestError(f"{path} is merged into {base.name} by Compose: {WHOLE}")
            return
        yield from compose(path, next(one for one in found if "services" in one), environ)
    elif found and set(found[0]) & {"prefill", "decode", "discover_prefill", "discover_decode"}:
        box = Box(manager="shell", network=f"router of {path}")
        yield Scene(path.name, Declared(routers=(Router(path.name, {}, {}, box, path),)))


def _almost_a_site(one: Mapping[str, Any]) -> str | None:
    """The key that stands in place of ``hosts``."""
    if "kind" in one or not {"model", "preset", "engines"} & set(one):
        return None
    return next(iter(get_close_matches("hosts", map(str, one), n=1)), None)


def _mappings(path: Path, text: str) -> list[dict[str, Any]]:
    """The documents of a file; those of a list are documents too."""
    try:
        found = documents(path, text)
    except UnreadError as error:
        raise ManifestError(f"{error}: {error.remedy}") from None
    each = (one for document in found for one in (document if isinstance(document, list) else [document]))
    return [one for one in each if isinstance(one, dict)]
