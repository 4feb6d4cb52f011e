"""A model that the stack can start, and how its name becomes one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon_server.stack.models import smollm2, tiny
from antiphon_server.stack.models.cache import cache_folder

BUILT_IN = ("smollm2", "tiny", "tiny-bpe")
CHATML = Path(__file__).with_name("chatml.jinja")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


class ModelError(ValueError):
    """A model that cannot be had, and what to do about it."""


@dataclass(frozen=True, slots=True)
class Model:
    """``path``: a folder, or a hub id that vLLM fetches. ``name``: what clients call it.

    ``context``: most positions, None where only the hub knows. ``chat_template`` None: the model's own.
    ``dtype``: what the ``cpu`` preset runs it in.
    """

    name: str
    path: str
    local: bool
    context: int | None
    chat_template: Path | None = None
    tool_parser: str = "hermes"
    dtype: str = "float32"


def resolve(
    name_or_path: str,
    environ: Mapping[str, str] = os.environ,
    *,
    build: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> Model:
    """The model of a built-in name, a folder with ``config.json``, or a hub id (``owner/name``).

    Built-in models are generated or converted on first use and then come from the cache; with ``build``
    False only the place is told where that would put them.

    Raises:
        ModelError: neither of the three, a hub id without network, or a failed conversion.
    """
    if name_or_path in BUILT_IN:
        return _built_in(name_or_path, cache_folder(environ), build, progress)
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return _local(folder)
    if HUB_ID.fullmatch(name_or_path):
        return _hub(name_or_path, environ)
    raise ModelError(
        f"no model {name_or_path!r}: it is neither a folder nor a hub id (owner/name) "
        f"nor one of {', '.join(BUILT_IN)}"
    )


def _built_in(name: str, cache: Path, build: bool, progress: Callable[[str], None]) -> Model:
    if name == "smollm2":
        path, context = smollm2.location(cache), smollm2.CONTEXT
        if build:
            try:
                smollm2.smollm2(cache, progress)
            except smollm2.ConversionError as error:
                raise ModelError(str(error)) from error
    else:
        bpe = name == "tiny-bpe"
        path, context = tiny.location(cache, bpe=bpe), tiny.CONTEXT
        if build:
            tiny.tiny(cache, bpe=bpe)
    return Model(name, str(path), local=True, context=context, chat_template=CHATML)


def _local(folder: Path) -> Model:
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"no config.json in {folder}: give the folder that holds the model's config.json")
    return Model(folder.resolve().name, str(folder.resolve()), local=True, context=_context(folder))


def _hub(hub_id: str, environ: Mapping[str, str]) -> Model:
    offline = environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    if offline and not _hub_snapshots(hub_id, environ):
        raise ModelError(
            f"{hub_id} is not in the hub's cache, and HF_HUB_OFFLINE={environ['HF_HUB_OFFLINE']} forbids to "
            "fetch it: unset HF_HUB_OFFLINE, or give the path of a local copy"
        )
    return Model(hub_id, hub_id, local=False, context=None)


def _hub_snapshots(hub_id: str, environ: Mapping[str, str]) -> list[Path]:
    home = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface").expanduser()
    hub = Path(environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    return list((hub / f"models--{hub_id.replace('/', '--')}" / "snapshots").glob("*/config.json"))


def _context(folder: Path) -> int | None:
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    context = config.get("max_position_embeddings")
    return context if isinstance(context, int) else None
