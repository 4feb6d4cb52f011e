"""A site's file, read strictly: every fault at once, each with its remedy."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pydantic
from pydantic_core import ErrorDetails

from antiphon_server.deploy.rules import faults_of
from antiphon_server.deploy.site import Engines, Host, Site
from antiphon_server.stack.validate import Fault, ValidationError
from antiphon_server.strict_yaml import YamlError, parse, text_of

_KEYS = {
    0: tuple(Site.model_fields),
    1: tuple(Engines.model_fields),
    2: tuple(Host.model_fields),
}
"""By how deep they stand: of the file, of ``engines``, of a host."""
_COMPOSE = re.compile(r"^services:", re.MULTILINE)


def read(file: Path) -> Site:
    """The site that a file describes.

    Raises:
        ValidationError: with every fault of it.
    """
    site = _parsed(_loaded(file))
    if faults := faults_of(site):
        raise ValidationError(faults)
    return site


def _loaded(file: Path) -> Any:
    try:
        text = text_of(file)
        if _COMPOSE.search(text):
            told = "it looks like a compose file: name a site's file, or give this one to 'antiphon doctor'"
            raise ValidationError([Fault("site", str(file), told)])
        return parse(text)
    except YamlError as error:
        problem = f" ({error.problem})" if error.problem else ""
        told = f"{error.cause}{error.place}{problem}: {error.remedy}"
        raise ValidationError([Fault("site", str(file), told)]) from error


def _parsed(read: Any) -> Site:
    try:
        return Site.model_validate(read)
    except pydantic.ValidationError as error:
        raise ValidationError([_fault(one) for one in error.errors()]) from error


def _fault(error: ErrorDetails) -> Fault:
    path = [str(part) for part in error["loc"]]
    thing = ".".join(path) or "site"
    if error["type"] == "extra_forbidden":
        known = _KEYS[len(path) - 1]
        near = get_close_matches(path[-1].replace("-", "_"), known, n=1)
        return Fault(
            thing,
            repr(error["input"]),
            f"did you mean {near[0]}?" if near else f"take one of {', '.join(known)}",
        )
    if error["type"] == "missing":
        return Fault(thing, "missing", "give it")
    if error["type"] == "too_long":
        most = error.get("ctx", {}).get("max_length")
        return Fault(thing, f"{len(error['input'])} of them", f"give {most} at most")
    words = error["msg"].replace("Input should be", "give").replace("Input should", "it must")
    return Fault(thing, repr(error["input"]), words[:1].lower() + words[1:])
