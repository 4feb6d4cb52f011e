"""``antiphon engine ...`` as the vLLM command that it becomes, rendered by what starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperOption

from antiphon_server.doctor.declared.declared import HIDDEN
from antiphon_server.stack import engine_cli
from antiphon_server.stack.command import engine_of
from antiphon_server.stack.flags import after_entry
from antiphon_server.stack.models import Model, ModelError, resolve
from antiphon_server.stack.ports import DECODE_BASE, PREFILL_BASE, EnginePorts
from antiphon_server.stack.reach import loopback, numeric
from antiphon_server.stack.settings import Role

SOMEWHERE = "192.0.2.1"
"""Stands for an address that is found where the engine runs; reserved for documentation."""


TRUE = ("1", "true", "t", "yes", "y", "on")


class ExpandError(ValueError):
    """A command that ``antiphon engine`` itself refuses; the message says why."""


def expand(words: Sequence[str], environ: Mapping[str, str]) -> tuple[Role, tuple[str, ...], dict[str, str]]:
    """Role, vLLM's flags and the environment of ``antiphon engine WORDS`` under ``environ``. Addresses and
    keys that are only known where it runs are hidden.

    Raises:
        ExpandError
    """
    given = _parsed(words, environ)
    settings = engine_cli.settings_of(given, environ)
    role = Role(given["role"].value)
    found_there = settings.address is not None and not _known(settings.address)
    if found_there:
        settings = replace(settings, address=SOMEWHERE)
    ports = EnginePorts(given["port"] or (PREFILL_BASE if role is Role.PREFILL else DECODE_BASE), 0)
    ports = replace(ports, side_channel=given["side_channel_port"])
    spec = engine_of(settings, _model(settings.model), Path(), role, given["index"], ports, 1)
    env = {**environ, **spec.env}
    if found_there:
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = f"{HIDDEN} {given['address']}"
    return role, after_entry(spec.argv), env


def _parsed(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """The command's parameters, as its own parser reads them. The environment of this process counts for
    nothing."""
    app = typer.Typer(add_completion=False)
    app.command()(engine_cli.engine)
    command = typer.main.get_command(app)
    from_environment: list[str] = []
    for parameter in command.params:
        names, parameter.envvar = parameter.envvar, None
        names = [names] if isinstance(names, str) else names or ()
        value = next((environ[name] for name in names if environ.get(name)), None)
        if value is None or not isinstance(parameter, TyperOption):
            continue
        if not parameter.is_flag:
            from_environment += [parameter.opts[0], value]
        else:
            on = value.strip().lower() in TRUE
            from_environment += (parameter.opts if on else parameter.secondary_opts)[:1]
    try:
        context = command.make_context("antiphon engine", [*from_environment, *words])
    except Exception as error:
        # Typer carries its own click in some versions, so its errors have no class that can be named.
        said = getattr(error, "format_message", None)
        raise ExpandError(said() if said is not None else "it shows its help and ends") from None
    return dict(context.params)


def _known(address: str) -> bool:
    """A number: names and ``auto`` are settled where the engine runs."""
    return numeric(address) or loopback(address)


def _model(name: str) -> Model:
    try:
        return resolve(name, {"HF_HUB_OFFLINE": "0", "HOME": str(Path.home())}, build=False)
    except ModelError:
        # A folder of the container or host where it runs.
        return Model(Path(name).name, name, local=True, context=None)
