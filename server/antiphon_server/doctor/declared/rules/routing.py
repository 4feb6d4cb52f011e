"""Routers against engines, against each other, and against what stops them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from antiphon_server.doctor.declared.declared import HIDDEN, Declared, Engine
from antiphon_server.doctor.declared.rule import Hit, rule
from antiphon_server.doctor.declared.rules.places import side_channel_ports
from antiphon_server.doctor.declared.settings_of_router import routers_of
from antiphon_server.doctor.finding import Severity
from antiphon_server.protocol import LeaseLimits
from antiphon_server.stack.settings import Role

LONGEST_LEASE_S = 480.0
"""What Antiphon's connector grants at most unless ``antiphon_longest_lease`` says otherwise."""
DECODE_TTL_S = 480.0
PREFILL_LEASE_S = 30.0
"""vLLM's own defaults."""


@rule(
    "router-settings",
    Severity.ERROR,
    "the router's settings are sound",
    "The router explains the fault and does not start.",
)
def router_settings(fleet: Declared) -> Iterator[Hit]:
    for one in routers_of(fleet):
        for fault in one.faults:
            value = f" = {fault.value}" if fault.value is not None else ""
            remedy = fault.remedy or "correct it; 'antiphon check-config' explains every setting"
            yield Hit(one.router.subject, f"{fault.key}{value}: {fault.problem}", remedy)
        for notice in one.notices:
            yield Hit(one.router.subject, notice, "correct the name, or remove it", Severity.WARNING)


@rule(
    "router-port",
    Severity.ERROR,
    "a router listens on a port that no engine or other router of its host has",
    "The one that starts last does not start.",
)
def router_port(fleet: Declared) -> Iterator[Hit]:
    taken: dict[tuple[str, int], str] = {}
    for engine in fleet.engines:
        for number in side_channel_ports(engine):
            taken[engine.box.network, number] = f"a side-channel port of {engine.subject}"
        if _serves(engine):
            taken[engine.box.network, engine.flags.count("port", 8000)] = f"that of {engine.subject}"
    for one in routers_of(fleet):
        if not one.shows("port"):
            continue
        number, network = one.settings.port, one.router.box.network
        if whose := taken.get((network, number)):
            yield Hit(one.router.subject, f"port {number} is also {whose}", "give the router another port")
        taken.setdefault((network, number), f"that of {one.router.subject}")


@rule(
    "router-engines",
    Severity.WARNING,
    "the router names the engines that are declared beside it, each by its role",
    "An engine that no router names serves nothing; a URL where no engine is fails its turns.",
)
def router_engines(fleet: Declared) -> Iterator[Hit]:
    for one in routers_of(fleet):
        for role, urls in ((Role.PREFILL, one.settings.prefill), (Role.DECODE, one.settings.decode)):
            ports = {engine.flags.count("port", 8000): engine for engine in fleet.of(role) if _serves(engine)}
            others = {e.flags.count("port", 8000) for e in fleet.engines if e.role is not role and _serves(e)}
            if not ports or not one.shows(role.value):
                continue
            for url in urls:
                port = urlsplit(url).port or 80
                if port not in ports and port in others:
                    what = f"{url} is named as {role}, but a {_other(role)} engine listens on port {port}"
                    yield Hit(one.router.subject, what, f"name a {role} engine's URL", Severity.ERROR)
                elif port not in ports:
                    listens = ", ".join(map(str, sorted(ports)))
                    what = f"{url} is named as {role}, but {role} engines listen on {listens}"
                    yield Hit(one.router.subject, what, "correct the port on one of the two")


def _serves(engine: Engine) -> bool:
    return "headless" not in engine.flags.values


def _other(role: Role) -> Role:
    return Role.DECODE if role is Role.PREFILL else Role.PREFILL


@rule(
    "discovery",
    Severity.ERROR,
    "the router's label selectors find a service of the same manifests",
    "The router finds no engine and is never ready.",
)
def discovery(fleet: Declared) -> Iterator[Hit]:
    for one in routers_of(fleet):
        for role in (Role.PREFILL, Role.DECODE):
            selector = getattr(one.settings, f"discover_{role}")
            if not selector or not fleet.services or not one.shows(f"discover_{role}"):
                continue
            if not any(_matches(selector, dict(labels)) for labels in fleet.services):
                what = f"discover_{role} = {selector!r} matches the labels of no Service"
                yield Hit(one.router.subject, what, f"give the {role} engines' Service these labels")


def _matches(selector: str, labels: dict[str, str]) -> bool:
    """Equality alone; a selector with sets or ``!=`` is taken to match."""
    parts = [part.strip() for part in selector.split(",")]
    if any("!" in part or "(" in part or "=" not in part for part in parts):
        return True
    pairs = (part.replace("==", "=").split("=", 1) for part in parts)
    return all(labels.get(name.strip()) == value.strip() for name, value in pairs)


@rule(
    "engine-key-equal",
    Severity.ERROR,
    "the router's engine_key is the engines' API key",
    "Engines answer the router's every leg with 401.",
)
def engine_key_equal(fleet: Declared) -> Iterator[Hit]:
    for one in routers_of(fleet):
        if not one.shows("engine_key") and (one.router.unseen or not _said(one.engine_key)):
            continue  # a file where the router runs
        for engine in fleet.engines:
            ours, theirs = one.engine_key, engine.key
            if ours == theirs or _same_secret(ours, theirs):
                continue
            whose = "another key than" if theirs else "no key, unlike"
            if ours is None:
                whose = "a key, but none is given to"
            what = f"it asks for {whose} the router ({one.router.subject})"
            remedy = "set ANTIPHON_ENGINE_KEY of both from one place"
            yield Hit(engine.subject, what, remedy)


def _said(key: str | None) -> bool:
    """What is hidden is at least named, so that two names can be compared."""
    return key is not None and "/" in key.removeprefix(HIDDEN).strip(" /")


def _same_secret(ours: str | None, theirs: str | None) -> bool:
    """One is filled in where it runs, the other is not comparable with it: nothing is known against them."""
    both = [key for key in (ours, theirs) if key]
    hidden = [key.startswith(HIDDEN) for key in both]
    return len(both) == 2 and any(hidden) and not (all(hidden) and _said(ours) and _said(theirs))


@rule(
    "lease-budget",
    Severity.ERROR,
    "what decode keeps lives longer than the router's lease_margin and first renewal",
    "Handles expire before the router renews or sends them, so nothing is reused.",
)
def lease_budget(fleet: Declared) -> Iterator[Hit]:
    from antiphon_server.router.config.check import lease_limit_faults

    for one in routers_of(fleet):
        settings = one.settings
        if not settings.keeps or not one.shows("paths", "lease_ttl", "lease_margin", "renew_interval"):
            continue
        for engine in fleet.of(Role.DECODE):
            limits = limits_of(engine)
            for what, remedy in lease_limit_faults(limits, settings.lease_ttl, settings.lease_margin):
                yield Hit(engine.subject, what, remedy)
            first = settings.renew_interval + settings.lease_margin
            if settings.lease_margin < limits.decode <= first:
                what = f"a turn's KV is kept {limits.decode:g} s, the first renewal may take {first:g} s"
                remedy = "raise --decode-ttl, or lower the router's renew_interval"
                yield Hit(engine.subject, f"{what} (renew_interval + lease_margin)", remedy)


def limits_of(engine: Engine) -> LeaseLimits:
    """The leases that an engine's flags ask for, in seconds."""
    return LeaseLimits(
        decode=_seconds(engine, "decoder_kv_blocks_ttl", DECODE_TTL_S),
        prefill=_seconds(engine, "kv_lease_duration", PREFILL_LEASE_S),
        longest=_seconds(engine, "antiphon_longest_lease", LONGEST_LEASE_S),
    )


def _seconds(engine: Engine, name: str, default: float) -> float:
    value = engine.extra.get(name, default)
    return float(value) if isinstance(value, int | float) else default


@rule(
    "pinned-long",
    Severity.WARNING,
    "decode's own lease is not longer than the router keeps a conversation",
    "KV that nobody will come back for stays pinned: at 20k tokens a turn and one turn a second, 480 s are "
    "10 million tokens.",
)
def pinned_long(fleet: Declared) -> Iterator[Hit]:
    for one in routers_of(fleet):
        if not one.shows("paths", "keep"):
            continue
        for engine in fleet.of(Role.DECODE):
            ttl = limits_of(engine).decode
            if one.settings.keeps and engine.reuses and ttl > one.settings.keep:
                what = f"decode keeps a turn's KV for {ttl:g} s, the router's keep is {one.settings.keep:g} s"
                yield Hit(engine.subject, what, "lower --decode-ttl (60 is enough: the router renews)")


@rule(
    "router-keep-alive",
    Severity.ERROR,
    "the router drops idle connections before the engines close them",
    "The router's next leg meets a closed connection; a handle sent with it is lost.",
)
def router_keep_alive(fleet: Declared) -> Iterator[Hit]:
    for one in routers_of(fleet):
        for engine in fleet.engines:
            given = engine.env.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5")
            if one.shows("keep_alive") and given.isdigit() and one.settings.keep_alive >= int(given):
                what = f"it closes idle connections after {given} s, the router's keep_alive is "
                remedy = "set VLLM_HTTP_TIMEOUT_KEEP_ALIVE=600, or lower the router's keep_alive"
                yield Hit(engine.subject, f"{what}{one.settings.keep_alive:g} s", remedy)


@rule(
    "stop-grace",
    Severity.WARNING,
    "a router is given longer to stop than its shutdown_grace",
    "It is killed while turns still stream: clients see them cut, and kept KV is not released.",
)
def stop_grace(fleet: Declared) -> Iterator[Hit]:
    remedies = {
        "compose": "raise stop_grace_period",
        "kubernetes": "raise terminationGracePeriodSeconds (a preStop pause counts too)",
        "systemd": "raise TimeoutStopSec",
    }
    for one in routers_of(fleet):
        grace, wanted = one.router.box.grace, one.settings.shutdown_grace
        if grace is not None and grace <= wanted and one.shows("shutdown_grace"):
            what = f"it is killed {grace:g} s after SIGTERM, its shutdown_grace is {wanted:g} s"
            yield Hit(
                one.router.subject, what, f"{remedies[one.router.box.manager]}, or lower shutdown_grace"
            )


@rule(
    "shared-store",
    Severity.ERROR,
    "several routers of one fleet share a Redis",
    "Each knows only the conversations that it served: turns that reach another router start cold, and "
    "their kept KV stays pinned.",
)
def shared_store(fleet: Declared) -> Iterator[Hit]:
    routers = [one for one in routers_of(fleet) if one.shows("store", "paths")]
    places = {(tuple(one.settings.prefill), tuple(one.settings.decode)) for one in routers}
    known = all(one.shows("prefill", "decode") for one in routers)
    several = known and len(routers) > 1 and len(places) == 1
    for one in routers:
        count = one.router.box.replicas
        if one.settings.store == "memory" and one.settings.keeps and (count > 1 or several):
            what = f"{max(count, len(routers))} routers, each with its own store (store = memory)"
            yield Hit(one.router.subject, what, "set ANTIPHON_STORE=rediss://... on all of them, or run one")
    stores = {one.settings.store for one in routers}
    prefixes = {one.settings.store_prefix for one in routers}
    if several and "memory" not in stores and (len(stores) > 1 or len(prefixes) > 1):
        subject = ", ".join(one.router.subject for one in routers)
        yield Hit(subject, "they do not share one store and store_prefix", "give all routers the same ones")


RULES = (
    router_settings,
    router_port,
    router_engines,
    discovery,
    engine_key_equal,
    lease_budget,
    pinned_long,
    router_keep_alive,
    stop_grace,
    shared_store,
)
