"""``antiphon doctor``. Imports of weight stay inside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from antiphon_server.failing import fail
from antiphon_server.stack.settings import Preset

if TYPE_CHECKING:
    from antiphon_server.doctor.finding import Examination
    from antiphon_server.doctor.fleet.target import FleetTarget


def doctor(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TARGET",
            help="Files or folders: compose, rendered Kubernetes manifests, systemd units, "
            "shell lines of 'antiphon up --print', a router's YAML.",
            show_default=False,
        ),
    ] = None,
    machine: Annotated[
        bool, typer.Option("--machine", help="Look at this machine; so it does when nothing else is named.")
    ] = False,
    preset: Annotated[
        Preset | None,
        typer.Option(
            envvar="ANTIPHON_ENGINE_PRESET",
            help="Hardware that engines of this machine run on; default: what it looks like.",
            show_default=False,
        ),
    ] = None,
    router: Annotated[
        str | None, typer.Option(metavar="URL", help="A running router.", show_default=False)
    ] = None,
    prefill: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A running prefill engine; may be repeated.", show_default=False),
    ] = None,
    decode: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A running decode engine; may be repeated.", show_default=False),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option("--probe/--no-probe", help="Send turns through the running fleet too, not only look."),
    ] = True,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=3600,
            help="Seconds for an answer of the running fleet. A turn of a probe may take 10 times, all of it "
            "60 times as long.",
        ),
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Look for what is wrong with this machine, manifests, or a running fleet, and say how to mend it.

    Exit code: 0 nothing but notes (and warnings, unless --strict), 1 something to mend, 2 it could not look.
    Keys come from the environment: ANTIPHON_ENGINE_KEY of the engines, ANTIPHON_API_KEY of a client,
    ANTIPHON_ADMIN_KEY of the router's administrator.
    """
    from rich.console import Console

    from antiphon_server.doctor import report
    from antiphon_server.doctor.declared.manifests import ManifestError
    from antiphon_server.doctor.finding import together

    try:
        fleet = _fleet(router, prefill or (), decode or (), probe, timeout)
        looked = dict(_declared([_target(given) for given in targets or ()]))
    except (ManifestError, ValueError) as error:
        if as_json:
            typer.echo(report.failure_as_json(str(error)))
        fail(str(error))
    if machine or not (targets or fleet):
        from antiphon_server.doctor.machine.examine import examine as look_at_machine

        looked["this machine"] = look_at_machine(os.environ, preset=preset)
    if fleet is not None:
        from antiphon_server.doctor.fleet.examine import examine as look_at_fleet

        looked["the running fleet"] = look_at_fleet(fleet)
    found = report.Report(tuple(looked), together(looked.values()), strict)
    if as_json:
        typer.echo(report.as_json(found))
    else:
        report.show(found, Console())
    raise typer.Exit(found.exit_code)


def _declared(targets: Sequence[Path]) -> Iterator[tuple[str, Examination]]:
    from antiphon_server.doctor.declared.examine import examine
    from antiphon_server.doctor.declared.manifests import read

    for scene in read(targets):
        yield scene.name, examine(scene.declared)


def _target(given: str) -> Path:
    """A file or folder. Raises ValueError for what cannot be one."""
    if not given.strip():
        raise ValueError(
            "TARGET is empty: give a file or folder; is the variable set that it was taken from?"
        )
    if given.startswith(("http://", "https://")):
        raise ValueError(f"{given} is a URL: name what runs there by --router, --prefill or --decode")
    return Path(given)


def _fleet(
    router: str | None, prefill: Sequence[str], decode: Sequence[str], probe: bool, timeout: float
) -> FleetTarget | None:
    from antiphon_server.doctor.fleet.target import FleetTarget

    if router is None and not (prefill or decode):
        return None
    return FleetTarget(
        _url("--router", router) if router is not None else None,
        tuple(_url("--prefill", url) for url in prefill),
        tuple(_url("--decode", url) for url in decode),
        engine_key=_key("ANTIPHON_ENGINE_KEY"),
        api_key=_key("ANTIPHON_API_KEY"),
        admin_key=_key("ANTIPHON_ADMIN_KEY"),
        probe=probe,
        timeout=timeout,
    )


def _url(option: str, given: str) -> str:
    """A base URL. Raises ValueError with the option and what it was given, but never a password."""
    import httpx

    form = "http(s)://host[:port]"
    if not given.strip():
        raise ValueError(f"{option} is empty: give {form}; is the variable set that it was taken from?")
    if "@" in given:
        raise ValueError(f"{option} names a user or password, which is never sent: leave it out")
    try:
        url = httpx.URL(given)
        port = urlsplit(given).port
    except (ValueError, httpx.InvalidURL) as error:
        raise ValueError(f"{option} {given!r} is not {form}: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host or port == 0 or url.query or url.fragment:
        raise ValueError(f"{option} {given!r} is not {form}: give the address that it serves on")
    return given.rstrip("/")


def _key(name: str) -> str | None:
    """Raises ValueError where no header can carry it."""
    key = os.environ.get(name) or None
    if key is not None and not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ValueError(f"{name} holds a line's end, white space or other letters than ASCII's: no key does")
    return key
