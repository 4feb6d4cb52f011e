"""JSON data of one's own, made of whatever a client library hands out. No library is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon._errors import TurnError


def plain(value: Any, **how: Any) -> Any:
    """A deep copy. Models (openai's, pydantic's) give the fields that came, unknown ones and nulls included,
    and none that only have a default.

    ``how``: further options for ``model_dump`` of the outermost model.

    Raises:
        TurnError: it holds something that is no JSON.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(type(value), "model_dump"):
        # warnings: openai builds models without validation, so that a field may hold what its type forbids
        return plain(value.model_dump(by_alias=True, exclude_unset=True, warnings=False, **how))
    raise TurnError(f"{value!r} is a {type(value).__name__}, which no message can hold: make JSON data of it")


def get(thing: Any, name: str) -> Any:
    """The field of a mapping or a model; None where there is none."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
