"""What must hold in a site, and what is allowed but to be known."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from dataclasses import replace
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any

from antiphon_server.deploy.router_port import port_faults
from antiphon_server.deploy.site import MOST_ENGINES, Engines, Site
from antiphon_server.doctor.declared.declared import SECRETS_FILE
from antiphon_server.doctor.declared.manifests.secrets import plain
from antiphon_server.router.config.config import load
from antiphon_server.router.config.options import options
from antiphon_server.router.config.redact import redacted
from antiphon_server.router.store.store_url import MEMORY
from antiphon_server.stack.command import SECRETS, secret_of
from antiphon_server.stack.models.model import BUILT_IN, HUB_ID
from antiphon_server.stack.presets import PRESETS
from antiphon_server.stack.settings import Preset
from antiphon_server.stack.validate import Fault, settings_faults

HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
LOGIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MADE = {"prefill", "decode", "host"}
"""Settings of the router that come from the hosts."""
ENGINE_KEY = "ANTIPHON_ENGINE_KEY"


def faults_of(site: Site) -> list[Fault]:
    """All that keeps the site from being rendered."""
    if (count := site.prefill + site.decode) > MOST_ENGINES:
        remedy = f"describe at most {MOST_ENGINES} engines in one site; more fleets are more sites"
        return [Fault("hosts", f"{count} engines", remedy)]
    return [
        *_hosts(site),
        *_places(site),
        *_roles(site),
        *_gpus(site),
        *_model(site),
        *_environment(site),
        *_engines(site),
        *_router(site),
        *port_faults(site),
    ]


def notices_of(site: Site) -> list[str]:
    """Allowed, but not what it looks like."""
    both = [name for name, host in site.hosts.items() if host.prefill and host.decode]
    notices = [
        f"hosts.{name}: prefill and decode on one machine; between its own GPUs LIBFABRIC falls to TCP "
        "(about 0.5 GB/s): give them hosts of their own where TTFT matters"
        for name in both
        if site.preset is Preset.EFA
    ]
    if site.preset is Preset.GPU and len(site.hosts) > 1:
        notices.append(
            "preset gpu between hosts is UCX over whatever it finds, TCP at worst: take efa on EFA"
        )
    return notices


def router_texts(site: Site) -> dict[str, str]:
    """The ``router`` settings by environment variable."""
    known = {key: f"ANTIPHON_{key.upper()}" for option in options() for key in option.keys}
    return {known[key]: _text(value) for key, value in site.router.items() if key in known}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _hosts(site: Site) -> list[Fault]:
    faults = [
        Fault("hosts", name, "name it with small letters, digits, dots and hyphens: it names a folder")
        for name in site.hosts
        if not HOST_NAME.fullmatch(name)
    ]
    for name, host in site.hosts.items():
        thing = f"hosts.{name}"
        try:
            parsed = ipaddress.IPv4Address(host.address)
        except ValueError:
            remedy = "give its numeric IPv4 address: engines bind to it, which a name does not allow"
            faults.append(Fault(f"{thing}.address", host.address, remedy))
            continue
        if (
            (parsed.is_loopback and site.preset is not Preset.CPU)
            or parsed.is_unspecified
            or parsed.is_link_local
        ):
            faults.append(
                Fault(f"{thing}.address", host.address, "give the one that other hosts reach it by")
            )
        if not host.engines and not host.router:
            faults.append(Fault(thing, "nothing", "give it prefill: 1, decode: 1 or router: true"))
    shared = Counter(host.address for host in site.hosts.values())
    faults += [
        Fault("hosts", address, "is there twice: name each machine once, with all its roles")
        for address, times in shared.items()
        if times > 1
    ]
    return faults


def _roles(site: Site) -> list[Fault]:
    routers = [name for name, host in site.hosts.items() if host.router]
    counts = {"prefill": site.prefill, "decode": site.decode}
    faults = [
        Fault("hosts", f"no {role} engine", f"give a host {role}: 1")
        for role, count in counts.items()
        if not count
    ]
    if not routers:
        faults.append(Fault("hosts", "no router", "give a host router: true"))
    if len(routers) > 1 and site.router.get("store", MEMORY) == MEMORY:
        remedy = "several routers must share what they know: give store: redis://HOST:6379/0"
        faults.append(Fault("router.store", MEMORY, remedy))
    return faults


def _gpus(site: Site) -> list[Fault]:
    if not PRESETS[site.preset].gpus:
        return []
    return [
        Fault(
            f"hosts.{name}.gpus",
            f"{host.gpus} of the {host.engines * site.engines.width} needed",
            "move engines to another host, or lower engines.tensor_parallel",
        )
        for name, host in site.hosts.items()
        if host.engines * site.engines.width > host.gpus
    ]


def _model(site: Site) -> list[Fault]:
    if (PurePosixPath(site.model).is_absolute() and site.model.isprintable()) or HUB_ID.fullmatch(site.model):
        return []
    if site.preset is Preset.CPU and site.model in BUILT_IN:
        return []
    return [
        Fault(
            "model",
            site.model,
            "give a hub id (owner/name) or a folder's absolute path, the same on all hosts",
        )
    ]


def _places(site: Site) -> list[Fault]:
    """Of the folder of models, and of the user to copy files as."""
    faults: list[Fault] = []
    cache = PurePosixPath(site.cache)
    if (
        not cache.is_absolute()
        or ".." in cache.parts
        or len(cache.parts) == 1
        or not site.cache.isprintable()
    ):
        remedy = "give a folder's absolute path, in one line and not the root: models are fetched into it"
        faults.append(Fault("cache", repr(site.cache), remedy))
    if not LOGIN.fullmatch(site.login):
        remedy = "give the user that ssh may log in as on the hosts, such as ubuntu"
        faults.append(Fault("login", repr(site.login), remedy))
    return faults


def _environment(site: Site) -> list[Fault]:
    faults = [
        Fault("engines.env", name, "is no name of a variable: letters, digits and _")
        for name in site.engines.env
        if not ENV_NAME.fullmatch(name)
    ]
    faults += [
        Fault(f"engines.env.{name}", "several lines", "give one line")
        for name, value in site.engines.env.items()
        if set(value) & set("\n\r\0")
    ]
    return [*faults, *_secrets(site.engines)]


def _secrets(engines: Engines) -> list[Fault]:
    """What everybody on a host could read: environment files are open, and so are command lines."""
    named = {one.name for one in plain("engines.env", engines.env)} | (SECRETS & engines.env.keys())
    faults = [_secret(f"engines.env.{name}", name) for name in engines.env if name in named]
    for role in ("flags", "prefill_flags", "decode_flags"):
        flags = [word.partition("=")[0] for word in getattr(engines, role)]
        faults += [_secret(f"engines.{role}.{flag}", name) for flag in flags if (name := secret_of(flag))]
    return faults


def _secret(thing: str, variable: str) -> Fault:
    # vLLM's own name for it is made of ours.
    name = ENGINE_KEY if variable == "VLLM_API_KEY" else variable
    return Fault(thing, "***", f"a secret: leave it out, and write {name} into {SECRETS_FILE} on the hosts")


def _engines(site: Site) -> list[Fault]:
    # Counts and addresses have been judged host by host.
    told = {"prefill", "decode", "address"}
    found = settings_faults(site.whole(), site.engines.env)
    return [replace(fault, thing=_here(fault.thing)) for fault in found if fault.thing not in told]


def _here(thing: str) -> str:
    """What a setting of a stack is called in a site."""
    return re.sub(r"overrides\[(\w+)\]\.flags", r"engines.flags or engines.\1_flags", thing)


def _router(site: Site) -> list[Fault]:
    secrets = {option.name for option in options() if option.secret}
    paths = {key for option in options() if option.kind == "path" for key in option.keys}
    known = {key for option in options() for key in option.keys}
    faults: list[Fault] = []
    for key in site.router:
        if key in MADE:
            faults.append(Fault(f"router.{key}", "given", "leave it out: it comes from hosts"))
        elif key in secrets:
            faults.append(
                Fault(f"router.{key}", "***", f"a secret: write ANTIPHON_{key.upper()} into {SECRETS_FILE}")
            )
        elif key == "store" and redacted(str(site.router[key])) != str(site.router[key]):
            remedy = f"give it without its password, and write ANTIPHON_STORE with it into {SECRETS_FILE}"
            faults.append(Fault("router.store", redacted(str(site.router[key])), remedy))
        elif key not in known:
            near = get_close_matches(key.replace("-", "_"), known, n=1)
            remedy = (
                f"did you mean {near[0]}?" if near else "remove it; 'antiphon router --help' names all keys"
            )
            faults.append(Fault(f"router.{key}", "no such setting", remedy))
    if faults:
        return faults
    # Files lie on the hosts, so only what can be judged without them is.
    judged = {
        name: text
        for name, text in router_texts(site).items()
        if name.removeprefix("ANTIPHON_").lower() not in paths
    }
    engines = {"ANTIPHON_PREFILL": "http://prefill", "ANTIPHON_DECODE": "http://decode"}
    return [
        Fault(
            f"router.{fault.key}" if fault.key != "settings" else "router",
            fault.value or "not given",
            f"{fault.problem}. {fault.remedy}".rstrip(". "),
        )
        for fault in load({}, {**engines, **judged}).faults
    ]
