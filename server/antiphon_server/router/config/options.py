"""Every setting as an option: its flag, environment variable and YAML key, read off the settings' fields.

The command line, ``check-config`` and the operator's guide are made from this list, so none can miss one.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from antiphon_server.environment import PREFIX
from antiphon_server.router.config.settings import RouterSettings

FILE_TWIN = "_file"
"""A secret is never a flag: ``engine_key`` is given as a file by ``engine_key_file``, or in the clear by the
environment or the configuration file."""

Kind = Literal["switch", "number", "count", "path", "choice", "text"]


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. ``many``: a list, its flag repeats. ``default``: as a user would write it, None if there
    is none. ``choices``: the words allowed, if only some are. ``group``: heading of its like."""

    name: str
    description: str
    group: str
    kind: Kind
    default: str | None
    many: bool = False
    secret: bool = False
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """As on the command line; a secret's names a file."""
        return "--" + self.name.replace("_", "-") + ("-file" if self.secret else "")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return PREFIX + self.name.upper()

    @property
    def keys(self) -> tuple[str, ...]:
        """Its names in a file; a secret has a twin that names a file."""
        return (self.name, self.name + FILE_TWIN) if self.secret else (self.name,)


@cache
def options() -> tuple[Option, ...]:
    """All of them, in the order of the settings' groups and fields."""
    found = [_option(name, field) for name, field in RouterSettings.model_fields.items()]
    order = [(group.__doc__ or "").strip() for group in RouterSettings.__bases__] + ["Others"]
    return tuple(sorted(found, key=lambda option: order.index(option.group)))


@cache
def option(name: str) -> Option:
    """The one of that name."""
    return next(option for option in options() if option.name == name)


def _option(name: str, field: FieldInfo) -> Option:
    inner, many = _inner(field.annotation)
    choices = tuple(str(word) for word in get_args(inner)) if get_origin(inner) is Literal else ()
    return Option(
        name=name,
        description=field.description or "",
        group=_group(name),
        kind="choice" if choices else _kind(inner),
        default=_default(field),
        many=many,
        secret=inner is SecretStr,
        choices=choices,
    )


def _inner(annotation: Any) -> tuple[Any, bool]:
    """The type itself without ``| None``; of a list its items', and that it is one."""
    if get_origin(annotation) in {Union, types.UnionType}:
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    if get_origin(annotation) in {list, tuple, set, frozenset}:
        return _inner(get_args(annotation)[0])[0], True
    return annotation, False


def _kind(annotation: Any) -> Kind:
    kinds: dict[Any, Kind] = {bool: "switch", float: "number", int: "count", Path: "path", SecretStr: "path"}
    return kinds.get(annotation, "text")


def _default(field: FieldInfo) -> str | None:
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value is None or value == [] or value == {}:
        return None
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _group(name: str) -> str:
    """Fields are grouped by the class that declares them; its docstring's is the heading."""
    owner = next(cls for cls in RouterSettings.__mro__ if name in vars(cls).get("__annotations__", {}))
    return (owner.__doc__ or owner.__name__).strip() if owner is not RouterSettings else "Others"
