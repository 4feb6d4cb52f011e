"""Settings from one place: flags, then the environment, then a YAML file, then defaults.

Whatever is wrong is told at once, not one fault a try. A secret's value is shown nowhere.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from antiphon_server.environment import ENGINE_VARIABLES, OF_UNITS, PREFIX, meant
from antiphon_server.router.config import agreements
from antiphon_server.router.config.explain import Fault, of_pydantic, shown
from antiphon_server.router.config.options import FILE_TWIN, options
from antiphon_server.router.config.redact import masked
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.gate.keys import KeysError, read_keys
from antiphon_server.router.upstream.upstream import Origin
from antiphon_server.strict_yaml import YamlError, read_yaml

CONFIG_VARIABLE = PREFIX + "CONFIG"
OTHERS = {CONFIG_VARIABLE, *ENGINE_VARIABLES, *OF_UNITS}
"""Are no settings; a file of variables may be shared with engines."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value and who gave it: ``--port``, ``ANTIPHON_PORT`` or ``router.yaml``."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """``settings``: None when there are ``faults``. ``notices``: allowed, but looks like a mistake.
    ``readable``: the settings with defaults for what is faulty, to look at and not to serve with."""

    settings: RouterSettings | None
    faults: tuple[Fault, ...] = ()
    notices: tuple[str, ...] = ()
    given: Mapping[str, Given] = field(default_factory=dict)
    readable: RouterSettings | None = None

    def explain(self) -> str:
        """All faults and notices, a line each."""
        return "\n".join([*map(str, self.faults), *(f"notice: {notice}" for notice in self.notices)])


def load(flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None) -> Loaded:
    """Read all sources. ``flags``: by setting, only those given. ``file``: else the one ``ANTIPHON_CONFIG``
    names, else none."""
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    faults: list[Fault] = []
    values: dict[str, Given] = {}
    in_file = _from_file(file, faults) if file is not None else {}
    in_environment, notices = _from_environment(environ)
    in_flags = {name: Given(value, _flag(name)) for name, value in flags.items()}
    for source in (in_file, in_environment, in_flags):
        values |= _resolved(source, faults)
    settings, wrong = _validated(values, faults)
    # What is said about a setting that is wrong by itself would be about its default.
    between = [
        *(Fault("settings", None, "", problem, "") for problem in agreements.problems(settings)),
        *_absent(settings),
        *_twice(settings),
        *_tls(settings),
        *_keys(settings),
    ]
    faults += [f for f in between if not any(re.search(rf"\b{w}\b", f"{f.key} {f.problem}") for w in wrong)]
    return Loaded(settings if not faults else None, tuple(faults), tuple(notices), values, settings)


def _from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Given], list[str]]:
    """Names count in any case; an empty variable is one that is not set."""
    known = {PREFIX + key.upper(): key for option in options() for key in option.keys}
    values: dict[str, Given] = {}
    notices: list[str] = []
    for name, value in environ.items():
        key = known.get(name.upper())
        if key is not None and value != "":
            values[key] = Given(value, name)
        elif key is None and name.upper() not in OTHERS and (near := meant(name, known)):
            notices.append(f"{name} is not read: did you mean {near}?")
    return values, notices


def _from_file(file: Path, faults: list[Fault]) -> dict[str, Given]:
    origin = str(file)
    try:
        read = read_yaml(file)
    except YamlError as error:
        faults.append(Fault("config", origin, "", f"the file {error}", error.remedy))
        return {}
    if read is None:
        return {}
    if not isinstance(read, dict):
        remedy = "write one 'key: value' a line"
        faults.append(Fault("config", origin, "", f"the file holds a {type(read).__name__}", remedy))
        return {}
    known = [key for option in options() for key in option.keys]
    values: dict[str, Given] = {}
    for key, value in read.items():
        if key in known:
            if value is not None:
                values[key] = Given(value, origin)
            continue
        near = get_close_matches(str(key).replace("-", "_"), known, n=1, cutoff=0.6)
        remedy = f"did you mean {near[0]}?" if near else "remove it; 'antiphon router --help' names all keys"
        # Its value is not shown: the misspelt name may be a secret's.
        faults.append(Fault(str(key), None, origin, "no such setting", remedy))
    return values


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _resolved(source: dict[str, Given], faults: list[Fault]) -> dict[str, Given]:
    """One source with the files that hold its secrets read."""
    values = dict(source)
    for option in options():
        twin = values.pop(option.name + FILE_TWIN, None) if option.secret else None
        if twin is None:
            continue
        key = option.name + FILE_TWIN
        if option.name in values:
            faults.append(
                Fault(key, shown(twin.value), twin.origin, f"{option.name} is given too", "give one of them")
            )
            continue
        try:
            secret = Path(str(twin.value)).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            remedy = "name a file that the router may read"
            faults.append(Fault(key, shown(twin.value), twin.origin, f"cannot be read: {cause}", remedy))
            continue
        if not secret:
            remedy = "write the key into it"
            faults.append(Fault(key, shown(twin.value), twin.origin, "the file is empty", remedy))
            continue
        values[option.name] = Given(secret, twin.origin)
    return values


class Exactly(RouterSettings):
    """Only what it is given: the environment was read already."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


class _Sound(Exactly):
    """Each setting for itself."""

    @model_validator(mode="after")
    def _agrees(self) -> _Sound:
        return self


def _validated(values: Mapping[str, Given], faults: list[Fault]) -> tuple[RouterSettings, frozenset[str]]:
    """Settings that are sound each for itself, and the names of those that are not, which have defaults."""
    plain = {name: given.value for name, given in values.items()}
    wrong: frozenset[str] = frozenset()
    try:
        sound = _Sound(**plain)
    except ValidationError as error:
        faults += _faults(error.errors(), values)
        wrong = frozenset(str(problem["loc"][0]) for problem in error.errors())
        sound = _Sound(**{name: value for name, value in plain.items() if name not in wrong})
    return RouterSettings.model_construct(_fields_set=sound.model_fields_set, **dict(sound)), wrong


def _faults(errors: list[ErrorDetails], values: Mapping[str, Given]) -> list[Fault]:
    return [
        of_pydantic(error, values[name].origin if (name := str(error["loc"][0])) in values else "")
        for error in errors
    ]


def _absent(settings: RouterSettings) -> list[Fault]:
    faults = []
    for role, named, selector in (
        ("prefill", settings.prefill, settings.discover_prefill),
        ("decode", settings.decode, settings.discover_decode),
    ):
        if not named and not selector:
            remedy = f"name at least one --{role} URL, or a --discover-{role} label selector"
            faults.append(Fault(role, None, "", f"no {role} engine is named", remedy))
    return faults


def _twice(settings: RouterSettings) -> list[Fault]:
    there = {_address(url): url for url in settings.prefill}
    return [
        Fault(
            "decode", shown(url), "", f"{there[_address(url)]} is named for prefill too", "give it one role"
        )
        for url in settings.decode
        if _address(url) in there
    ]


def _address(url: str) -> tuple[str, int, str]:
    origin = Origin.parse(url)
    return origin.host.lower(), origin.port, origin.path


def _tls(settings: RouterSettings) -> list[Fault]:
    if settings.tls_cert is None and settings.tls_key is None:
        return []
    if settings.tls_cert is None or settings.tls_key is None:
        given, missing = ("tls_cert", "tls_key") if settings.tls_key is None else ("tls_key", "tls_cert")
        return [
            Fault(given, shown(getattr(settings, given)), "", f"{missing} is missing", f"give {missing} too")
        ]
    faults = [
        Fault(name, shown(path), "", "cannot be read", "name a PEM file that the router may read")
        for name, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key))
        if not _readable(path)
    ]
    if faults:
        return faults
    try:
        # An empty password: openssl would ask the terminal for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_cert, settings.tls_key, password=""
        )
    except (ssl.SSLError, OSError) as error:
        problem = f"not the certificate of tls_key {settings.tls_key}, or not PEM: {masked(str(error))}"
        remedy = "give a chain and its own key, not encrypted"
        return [Fault("tls_cert", shown(settings.tls_cert), "", problem, remedy)]
    return []


def _keys(settings: RouterSettings) -> list[Fault]:
    inline = settings.api_keys.get_secret_value() if settings.api_keys is not None else None
    try:
        read_keys(settings.keys_file, inline)
    except KeysError as error:
        name = "keys_file" if settings.keys_file is not None else "api_keys"
        return [Fault(name, None, "", str(error), "")]
    return []


def _readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False
