"""Environment files of a service: what they set, and what of it cannot be seen from here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon_server.doctor.declared.command_line import unread_file
from antiphon_server.doctor.declared.declared import HIDDEN, Declared, Plain
from antiphon_server.doctor.declared.files import UnreadError, text_of
from antiphon_server.doctor.declared.manifests.interpolation import variables_of
from antiphon_server.doctor.declared.manifests.secrets import exposed
from antiphon_server.doctor.finding import Finding

KEYS = ("ANTIPHON_ENGINE_KEY", "ANTIPHON_API_KEYS")


@dataclass(frozen=True, slots=True)
class Named:
    """An environment file as a service names it. ``places``: where it may lie, the first one counts.
    ``optional``: the service starts without it."""

    name: str
    places: tuple[Path, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class EnvironmentFiles:
    """``env``: what they set; what may be set by one that is not here is hidden. ``unseen``: more may be set.
    ``lacking``: one of those that must be there is not seen, so that nothing is known for sure."""

    env: Mapping[str, str]
    plain: tuple[Plain, ...] = ()
    unread: tuple[Finding, ...] = ()
    unseen: bool = False
    lacking: bool = False

    def told_with(self, found: Declared, plain: tuple[Plain, ...]) -> Declared:
        """What a service declares, with what is said of its files. An engine is what its files make of it:
        without them it is not judged. A router is, by what is known of it. ``plain``: more of them."""
        if not (found or found.unread):
            return found
        if self.lacking and not (found.routers or found.stores):
            found = replace(found, engines=(), unread=())
        return found + Declared(plain=plain + self.plain, unread=self.unread)


def environment(subject: str, files: Iterable[Named]) -> EnvironmentFiles:
    """Read all of them; the last one wins."""
    found = EnvironmentFiles({})
    for file in files:
        try:
            place, read = _first(file.places)
            found = replace(
                found, env={**found.env, **read}, plain=found.plain + exposed(subject, place, read)
            )
            continue
        except UnreadError as error:
            absent = error.missing and file.optional
            # A relative one would be here; others lie on the machine that it is for, with secrets perhaps.
            if not absent or Path(file.name).is_absolute():
                found = replace(found, env={**found.env, **dict.fromkeys(KEYS, f"{HIDDEN} {file.name}")})
            if not absent:
                said = unread_file(subject, error, "its variables, keys above all, were")
                found = replace(
                    found,
                    unread=(*found.unread, said),
                    unseen=True,
                    lacking=found.lacking or not file.optional,
                )
    return found


def _first(places: tuple[Path, ...]) -> tuple[Path, dict[str, str]]:
    """Where it lies and what it sets.

    Raises:
        UnreadError
    """
    for place in places:
        try:
            return place, variables_of(text_of(place))
        except UnreadError as error:
            if not error.missing:
                raise
    remedy = f"put a copy of it at {places[-1]}"
    raise UnreadError(places[0], "it is not here", remedy, missing=True)
