"""``antiphon engine``: become one engine of a fleet, in a container, under systemd or by hand."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from antiphon_server.environment import ENGINE_PREFIX, ENGINE_VARIABLES, OF_UNITS, meant
from antiphon_server.failing import fail
from antiphon_server.stack import init
from antiphon_server.stack.gpus import read_gpus
from antiphon_server.stack.ports import SIDE_CHANNEL_BASE
from antiphon_server.stack.settings import (
    FailurePolicy,
    Override,
    Preset,
    Role,
    StackSettings,
)
from antiphon_server.stack.shown import cut_secrets, show

DEFAULTS = StackSettings()
SAME_NAME = (
    "preset",
    "model",
    "prefill_cache",
    "stock",
    "failure_policy",
    "threshold",
    "decode_ttl",
    "max_model_len",
    "block_size",
    "tensor_parallel",
    "data_parallel",
    "kv_space",
)
"""Parameters that are settings of the stack by the same name."""


class EngineRole(StrEnum):
    """What ``antiphon engine`` can become."""

    PREFILL = Role.PREFILL.value
    DECODE = Role.DECODE.value


def _option(name: str, text: str, *, both: bool = False, **more: Any) -> Any:
    """``--name``, also read from ``ANTIPHON_ENGINE_NAME``."""
    flag = f"--{name}/--no-{name}" if both else f"--{name}"
    return typer.Option(flag, envvar=ENGINE_PREFIX + name.upper().replace("-", "_"), help=text, **more)


def engine(
    role: Annotated[EngineRole, typer.Argument(help="What it does.", show_default=False)],
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- FLAGS]...",
            help="More flags of vLLM; also ANTIPHON_ENGINE_FLAGS.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[Preset, _option("preset", "Hardware to run on.")] = Preset.CPU,
    model: Annotated[
        str, _option("model", "smollm2, tiny, tiny-bpe, a folder with config.json, or a hub id.")
    ] = "smollm2",
    index: Annotated[int, _option("index", "Its number among those of its role.", min=0)] = 0,
    host: Annotated[
        str | None, _option("host", "Address that it listens on, e.g. 0.0.0.0; default: its address.")
    ] = None,
    address: Annotated[
        str | None,
        _option("address", "Where engines on other hosts find this one: a number, a name, or auto."),
    ] = None,
    port: Annotated[
        int | None,
        _option("port", "Port of its API; default: 8100 for prefill, 8200 for decode.", min=1, max=65535),
    ] = None,
    side_channel_port: Annotated[
        int,
        _option("side-channel-port", "First port where NIXL agents meet, one a rank.", min=1, max=65535),
    ] = SIDE_CHANNEL_BASE,
    gpus: Annotated[
        str | None,
        _option("gpus", "GPUs to use, e.g. 0-3 or 4,5; default: what CUDA_VISIBLE_DEVICES says."),
    ] = None,
    prefill_cache: Annotated[
        bool, _option("prefill-cache", "Prefix caching, of a prefill engine.", both=True)
    ] = True,
    max_model_len: Annotated[
        int | None, _option("max-model-len", "Context; default: the model's.", min=1)
    ] = None,
    kv_space: Annotated[int, _option("kv-space", "GiB of KV cache (preset cpu).", min=1)] = 1,
    threads: Annotated[
        int | None, _option("threads", "Compute threads (preset cpu); default: all CPUs there are.", min=1)
    ] = None,
    tensor_parallel: Annotated[
        int, _option("tensor-parallel", "GPUs of each replica; prefill and decode alike.", min=1)
    ] = 1,
    data_parallel: Annotated[int, _option("data-parallel", "Replicas behind its API.", min=1)] = 1,
    block_size: Annotated[
        int | None, _option("block-size", "Tokens of a block; default: the preset's.", min=1)
    ] = None,
    threshold: Annotated[
        int, _option("threshold", "Fewer tokens than these are computed, not pulled.", min=0)
    ] = DEFAULTS.threshold,
    decode_ttl: Annotated[
        int, _option("decode-ttl", "Seconds that decode keeps a turn's KV without a renewal.", min=1)
    ] = DEFAULTS.decode_ttl,
    failure_policy: Annotated[
        FailurePolicy, _option("failure-policy", "What becomes of a request whose pull failed.")
    ] = DEFAULTS.failure_policy,
    stock: Annotated[
        bool, _option("stock", "vLLM's own connector: plain P/D, no reuse.", both=True)
    ] = DEFAULTS.stock,
    printed: Annotated[
        bool, typer.Option("--print", help="Print the exact command and environment; start nothing.")
    ] = False,
) -> None:
    """Become one prefill or decode engine: the process turns into vLLM, or supervises it as process 1.

    Options are environment variables too, ANTIPHON_ENGINE_ and the name in capitals; an option wins. What
    follows -- goes to vLLM as it is, behind what ANTIPHON_ENGINE_FLAGS holds, written as for a shell.
    ANTIPHON_ENGINE_KEY is the engine's API key, if it has one. Engines on several hosts need --address.
    """
    given = dict(locals())
    for notice in misspelt(os.environ):
        typer.echo(f"notice: {notice}", err=True)
    try:
        settings = settings_of(given, os.environ)
    except ValueError as error:
        fail(str(error), 1)
    _become(settings, Role(role.value), index, port, side_channel_port, threads, printed)


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """Variables that are nearly an engine's, and are not read; the router tells of its own likewise."""
    unread = sorted(environ.keys() - ENGINE_VARIABLES - OF_UNITS)
    return [
        f"{name} is not read: did you mean {near}?"
        for name in unread
        if (near := meant(name, ENGINE_VARIABLES))
    ]


def settings_of(given: Mapping[str, Any], environ: Mapping[str, str]) -> StackSettings:
    """What the command's parameters ask for. ``environ``: holds the key and more flags.

    Raises:
        ValueError: flags or GPUs cannot be read; it says which, and the remedy.
    """
    role = Role(given["role"].value)
    own = Override(flags=(*_flags(environ), *(given["flags"] or ())))
    return StackSettings(
        prefill=int(role is Role.PREFILL),
        decode=int(role is Role.DECODE),
        router=False,
        address=given["address"] or None,
        engine_host=given["host"] or None,
        gpus=read_gpus(given["gpus"] or ""),
        key=environ.get(f"{ENGINE_PREFIX}KEY") or None,
        overrides={role.value: own},
        **{name: given[name] for name in SAME_NAME},
    )


def _flags(environ: Mapping[str, str]) -> list[str]:
    name = f"{ENGINE_PREFIX}FLAGS"
    text = environ.get(name, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        shown = cut_secrets(text)
        raise ValueError(f"{name} = {shown}: write it as for a shell ({error})") from None


def _become(
    settings: StackSettings,
    role: Role,
    index: int,
    port: int | None,
    side_channel: int,
    threads: int | None,
    printed: bool,
) -> None:
    from antiphon_server.stack import node, validate
    from antiphon_server.stack.command import engine_of
    from antiphon_server.stack.models import ModelError, resolve
    from antiphon_server.stack.ports import DECODE_BASE, PREFILL_BASE, EnginePorts

    if init.is_first():
        init.end_when_asked()
    base = PREFILL_BASE if role is Role.PREFILL else DECODE_BASE
    ports = EnginePorts(port or base, side_channel)
    try:
        settings = node.placed(settings)
        if not printed:
            validate.runnable(settings)
            node.available(settings, ports)
        model = resolve(
            settings.model, build=not printed, progress=lambda line: print(line, file=sys.stderr, flush=True)
        )
    except (validate.ValidationError, ModelError, OSError) as error:
        fail(str(error), 1)
    spec = engine_of(settings, model, Path(), role, index, ports, threads or node.cores())
    if printed:
        show(settings, [spec])
        return
    if note := node.confined(settings):
        typer.echo(f"notice: {note}", err=True)
    _exec(spec.argv, {**os.environ, **spec.env})


def _exec(argv: tuple[str, ...], env: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if init.is_first():
        raise typer.Exit(init.supervise(argv, env))
    try:
        os.execve(argv[0], argv, env)
    except OSError as error:
        fail(f"cannot start {argv[0]}: {error.strerror}", 1)
