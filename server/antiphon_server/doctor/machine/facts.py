"""What was seen of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from antiphon_server.stack.settings import Preset
from antiphon_server.stack.validate import Machine


@dataclass(frozen=True, slots=True)
class Ran:
    """A program's answer. ``code`` None: it did not end in time."""

    code: int | None
    output: str


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """``devices``: names of the EFA interfaces; ``device_files``: what opens them. ``provider``: answer of
    ``fi_info``, None where it is not installed or was not asked. ``memlock``: bytes that a process may lock,
    ``open_files``: its limit, both None where unknown, ``inf`` without a limit. ``shm``: bytes.
    ``huge_pages``: free ones. ``taken``: ports that were wanted and are not free."""

    preset: Preset
    python: tuple[int, int]
    vllm: str | None
    survey: Machine
    devices: tuple[str, ...]
    device_files: tuple[str, ...]
    libfabric: str | None
    provider: Ran | None
    memlock: float | None
    open_files: float | None
    shm: int | None
    huge_pages: int
    taken: tuple[int, ...]
    environ: Mapping[str, str]
