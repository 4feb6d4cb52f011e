"""What a file declares to run together, and when."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_server.doctor.declared.declared import Declared


class ManifestError(ValueError):
    """A target that cannot be read; the message names it, says why, and what to give instead."""


@dataclass(frozen=True, slots=True)
class Scene:
    """``name``: the file, with its profile where it has some. ``joins``: it is part of a whole with other
    files, such as the units of one site; compose profiles stand for themselves."""

    name: str
    declared: Declared
    joins: bool = True
