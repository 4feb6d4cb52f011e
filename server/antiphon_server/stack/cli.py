"""``antiphon up``: start prefill, decode and router on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from antiphon_server.failing import fail
from antiphon_server.stack.settings import Preset, StackSettings
from antiphon_server.stack.shown import show


def up(
    preset: Annotated[Preset, typer.Option(help="Hardware to run on.")] = Preset.CPU,
    model: Annotated[
        str, typer.Option(help="smollm2, tiny, tiny-bpe, a folder with config.json, or a hub id.")
    ] = "smollm2",
    prefill: Annotated[int, typer.Option(min=1, help="Prefill engines.")] = 1,
    decode: Annotated[int, typer.Option(min=1, help="Decode engines.")] = 1,
    port: Annotated[int, typer.Option(help="Port of the router; the next free one if it is taken.")] = 8000,
    host: Annotated[str, typer.Option(help="Address that the router listens on.")] = "127.0.0.1",
    address: Annotated[
        str | None,
        typer.Option(help="Where engines on other hosts find these: a number, a name, or auto (preset efa)."),
    ] = None,
    prefill_cache: Annotated[bool, typer.Option(help="Prefix caching of prefill engines.")] = True,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Context; default: the model's.")] = None,
    kv_space: Annotated[int, typer.Option(min=1, help="GiB of KV cache per engine (preset cpu).")] = 1,
    tensor_parallel: Annotated[
        int, typer.Option(min=1, help="GPUs per engine, prefill and decode alike.")
    ] = 1,
    stock: Annotated[
        bool, typer.Option("--stock", help="vLLM's own connector: plain P/D, no reuse.")
    ] = False,
    log_dir: Annotated[
        Path | None, typer.Option(help="Folder of the logs; default: under the cache.")
    ] = None,
    printed: Annotated[
        bool, typer.Option("--print", help="Print the exact commands and environment; start nothing.")
    ] = False,
) -> None:
    """Start prefill and decode engines and the router on this machine, and stop them on Ctrl-C.

    The engines' API key, if one is wanted, comes from the environment: ANTIPHON_ENGINE_KEY.
    """
    settings = StackSettings(
        preset=preset,
        model=model,
        prefill=prefill,
        decode=decode,
        port=port,
        host=host,
        address=address,
        prefill_cache=prefill_cache,
        max_model_len=max_model_len,
        kv_space=kv_space,
        tensor_parallel=tensor_parallel,
        stock=stock,
        log_dir=log_dir,
        key=os.environ.get("ANTIPHON_ENGINE_KEY") or None,
    )
    if printed:
        _print(settings)
    else:
        _run(settings)


def _print(settings: StackSettings) -> None:
    from antiphon_server.stack.command import render
    from antiphon_server.stack.models import ModelError, resolve
    from antiphon_server.stack.node import cores, placed
    from antiphon_server.stack.ports import PortError, allocate
    from antiphon_server.stack.stack import new_log_dir
    from antiphon_server.stack.validate import ValidationError

    try:
        settings = placed(settings)
        model = resolve(settings.model, build=False)
        log_dir = settings.log_dir or new_log_dir(os.environ)
        specs = render(settings, allocate(settings), model, log_dir, cores())
    except (ModelError, PortError, ValidationError) as error:
        fail(str(error), 1)
    show(settings, specs)


def _run(settings: StackSettings) -> None:
    from rich.console import Console

    from antiphon_server.stack.addresses import addresses
    from antiphon_server.stack.models import ModelError
    from antiphon_server.stack.progress import LineProgress, LiveProgress
    from antiphon_server.stack.stack import Stack, StackError
    from antiphon_server.stack.validate import ValidationError

    console = Console(soft_wrap=True)
    live = LiveProgress(console) if console.is_terminal else None
    stack = Stack(settings, live or LineProgress(console))
    try:
        with _signals_stop():
            with live or contextlib.nullcontext():
                stack.start()
            console.print(addresses(stack))
            stack.watch()
    except (StackError, ModelError, OSError, ValidationError) as error:  # PortError is an OSError
        stack.stop()
        fail(str(error), 1)
    except KeyboardInterrupt:
        console.print("stopping (Ctrl-C again kills)")
    finally:
        try:
            stack.stop()
        except KeyboardInterrupt:
            stack.stop(at_once=True)


@contextlib.contextmanager
def _signals_stop() -> Iterator[None]:
    """SIGTERM and SIGHUP stop in order, as Ctrl-C does."""

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
