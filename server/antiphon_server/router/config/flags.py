"""Command-line options made from the settings. A function gets them as its keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from antiphon_server.router.config.options import FILE_TWIN, Option, options

_METAVARS = {"number": "NUMBER", "count": "COUNT", "path": "PATH", "text": "TEXT"}
CONFIG = typer.Option(
    help="YAML file with these settings as keys, e.g. renew_interval (env: ANTIPHON_CONFIG)",
    metavar="PATH",
    show_default=False,
)

F = TypeVar("F", bound=Callable[..., None])


def with_settings(command: F) -> F:
    """Give ``command(config, **flags)`` an option for each setting. Values stay texts: they are judged
    together with those of the environment and of the file, so that all faults are told at once."""
    given = [
        p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind != p.VAR_KEYWORD
    ]
    made = [
        inspect.Parameter(
            _name(option), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_kind(option)
        )
        for option in options()
    ]
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in given]
    command.__signature__ = inspect.Signature([*keywords, *made])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*keywords, *made]}
    return command


def flags_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the command line really names."""
    return {name: value for name, value in given.items() if value is not None and value != []}


def _name(option: Option) -> str:
    return option.name + FILE_TWIN if option.secret else option.name


def _kind(option: Option) -> Any:
    words = option.description
    if option.secret:
        words += "; a file that holds it"
    default = f"default: {option.default}; " if option.default is not None else ""
    variable = option.variable + (f" or {option.variable}_FILE" if option.secret else "")
    text = f"{words[:1].upper()}{words[1:]} ({default}env: {variable})"
    metavar = "|".join(option.choices) or ("URL" if option.name in {"prefill", "decode"} else None)
    declaration = option.flag
    if option.kind == "switch":
        declaration = f"{option.flag}/--no-{option.flag[2:]}"
        metavar = None
    elif metavar is None:
        metavar = _METAVARS[option.kind]
    info = typer.Option(
        declaration, help=text, metavar=metavar, rich_help_panel=option.group, show_default=False
    )
    if option.kind == "switch":
        return Annotated[bool | None, info]
    return Annotated[list[str] | None, info] if option.many else Annotated[str | None, info]


ConfigPath = Annotated[Path | None, CONFIG]
