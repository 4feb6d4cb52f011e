"""The folders that hosts are rendered into: only what was written there before is replaced or removed."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from antiphon_server.deploy.host_files import HostFiles
from antiphon_server.stack.validate import Fault, ValidationError

LIST = "rendered.txt"
"""Names of what was written, beside it."""
HEADING = "# Written by 'antiphon hosts', which replaces and removes these files, and no others."
SETTINGS = ("*.env", "*.service")
"""What the scripts would take for settings of the host."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._-]*")


def write(hosts: Sequence[HostFiles], known: Collection[str], out: Path) -> list[str]:
    """Write each host's folder anew, and empty those of hosts that are no longer ``known``.

    Returns:
        What was removed, to be told.

    Raises:
        ValidationError: files of somebody else's are in the way, and nothing has been written; or it cannot
            be written.
    """
    try:
        if faults := [fault for one in hosts for fault in _in_the_way(out / one.name, one)]:
            raise ValidationError(faults)
        for one in hosts:
            _render(out / one.name, one)
        return [_remove(folder) for folder in _left(known, out)]
    except OSError as error:
        why = error.strerror or type(error).__name__
        told = Fault("--out", str(error.filename or out), f"{why}: name a folder that can be written")
        raise ValidationError([told]) from error


def _in_the_way(folder: Path, host: HostFiles) -> list[Fault]:
    if not folder.is_dir():
        return [_fault(folder)] if _is_there(folder) else []
    own = written(folder)
    theirs = {
        name
        for name, text in host.files.items()
        if name not in own and _is_there(folder / name) and not _says(folder / name, text)
    }
    # These would go to the host, and onto it, with ours.
    theirs |= {file.name for kind in SETTINGS for file in folder.glob(kind)} - own.union(host.files)
    if not own and _is_there(folder / LIST):
        theirs.add(LIST)
    return [_fault(folder / name) for name in sorted(theirs)]


def _fault(path: Path) -> Fault:
    return Fault("--out", str(path), "was not written by this command: move it away, or name another folder")


def written(folder: Path) -> set[str]:
    """Names of what was rendered into a folder before."""
    try:
        heading, *names = (folder / LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return set()
    return {name for name in names if _NAME.fullmatch(name)} if heading == HEADING else set()


def _render(folder: Path, host: HostFiles) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    before = written(folder)
    # First, so that a rendering that was cut short can be done again.
    _list(folder, before.union(host.files))
    for name, text in host.files.items():
        _replace(folder / name, text)
    for name in before.difference(host.files):
        (folder / name).unlink(missing_ok=True)
    _list(folder, host.files)


def _list(folder: Path, names: Collection[str]) -> None:
    _replace(folder / LIST, "\n".join([HEADING, *sorted(names), ""]))


def _replace(file: Path, text: str) -> None:
    """As a whole; a link is replaced, not followed."""
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o755 if file.suffix == ".sh" else 0o644)
    fresh.replace(file)


def _left(known: Collection[str], out: Path) -> list[Path]:
    """Folders of hosts that the site no longer has."""
    folders = sorted(out.iterdir()) if out.is_dir() else []
    return [folder for folder in folders if folder.name not in known and folder.is_dir() and written(folder)]


def _remove(folder: Path) -> str:
    for name in written(folder):
        (folder / name).unlink(missing_ok=True)
    (folder / LIST).unlink()
    told = f"{folder}: removed what was rendered into it, since the site has no such host"
    if rest := sorted(one.name for one in folder.iterdir()):
        return f"{told}; not written by this command, and still there: {', '.join(rest)}"
    folder.rmdir()
    return told


def _is_there(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _says(file: Path, text: str) -> bool:
    return file.is_file() and not file.is_symlink() and file.read_bytes() == text.encode()
