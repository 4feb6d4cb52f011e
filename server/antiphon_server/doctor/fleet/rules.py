"""What is wrong with a running fleet, as far as it says so itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations

from antiphon_server.doctor.finding import Check, Fact, Finding, Severity
from antiphon_server.doctor.fleet import checks
from antiphon_server.doctor.fleet.facts import EngineSeen, FleetFacts, RouterTrouble, Trouble
from antiphon_server.doctor.machine.rules import too_old
from antiphon_server.protocol import Info
from antiphon_server.router.config.check import lease_faults
from antiphon_server.router.fleet.build import incompatible
from antiphon_server.stack.validate import INSTALL_NIXL
from antiphon_server.versions import MINIMUM_NIXL, numbers, text

LARGE_THRESHOLD = 1024
"""Tokens. vLLM's default is 64; a turn of an agent has some hundred new ones."""

Rule = Callable[[FleetFacts], Iterator[Finding]]

_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}(?:_dp\d+|-\w+)*", re.IGNORECASE)
"""What vLLM draws where no id is given, and what it appends."""

_TROUBLES: dict[Trouble, tuple[Check, str]] = {
    Trouble.SILENT: (checks.ENGINE, "start it, or mend its URL; is its port open to this machine?"),
    Trouble.UNHEALTHY: (checks.ENGINE, "see its log; start it anew"),
    Trouble.KEY: (checks.ENGINE_KEY, "give the engine's key as ANTIPHON_ENGINE_KEY, here and to the router"),
    Trouble.MALFORMED: (checks.ENGINE_PROTOCOL, "install one antiphon everywhere"),
    Trouble.PROTOCOL: (checks.ENGINE_PROTOCOL, "install one antiphon everywhere"),
    Trouble.ROLE: (checks.ENGINE_ROLE, "name it for its own role, here and to the router"),
}


def findings(fleet: FleetFacts) -> Iterator[Finding]:
    """What all rules find."""
    for rule in RULES:
        yield from rule(fleet)


def facts(fleet: FleetFacts) -> Iterator[Fact]:
    """What each engine says of itself."""
    for engine in fleet.engines:
        info = engine.asked.info
        if info is not None:
            build = [info.model, f"vLLM {info.vllm}", f"NIXL {info.nixl}", info.dtype]
            yield Fact(engine.name, "build", ", ".join(filter(None, build)))
            yield Fact(
                engine.name,
                "KV",
                f"{info.capacity} tokens in blocks of {info.block_size}, TP {info.tensor_parallel}, "
                f"leases of {info.leases.decode:g} s, at most {info.leases.longest:g} s",
            )


def _router(fleet: FleetFacts) -> Iterator[Finding]:
    router = fleet.router
    if router is None:
        return
    subject = f"router {router.url}"
    remedies = {
        RouterTrouble.SILENT: (checks.ROUTER, "start it, or mend its URL"),
        RouterTrouble.UNREADY: (
            checks.ROUTER,
            "it needs a prefill and a decode engine that answer: see /ready",
        ),
        RouterTrouble.API_KEY: (checks.ROUTER_KEY, "give a client's key (antiphon key makes one)"),
        RouterTrouble.ADMIN_KEY: (checks.ROUTER_KEY, "give the router's ANTIPHON_ADMIN_KEY, or none"),
    }
    for trouble, said in router.troubles.items():
        check, remedy = remedies[trouble]
        remedy = _reached(router.url) or remedy
        yield check.finding(subject, said if trouble is RouterTrouble.SILENT else f"answers {said}", remedy)
    if router.degraded:
        yield checks.ROUTER.finding(
            subject,
            "its shared store does not answer",
            "see that Redis runs and that the router reaches it",
            why="routers do not know each other's conversations, and a restart forgets them",
            severity=Severity.WARNING,
        )
    for worker in router.workers:
        states = {"is not healthy": not worker.healthy, "is shut out": worker.shut_out}
        for what in (what for what, holds in states.items() if holds):
            remedy = "see the router's log and the engine's"
            yield checks.ROUTER_WORKER.finding(subject, f"{worker.role} {worker.url} {what}", remedy)
        if worker.draining:
            yield checks.ROUTER_WORKER.finding(
                subject,
                f"{worker.role} {worker.url} is draining",
                "POST /admin/workers/undrain when it may serve again",
                severity=Severity.NOTE,
            )
    if router.loopback:
        yield checks.SIDE_CHANNEL.finding(
            subject,
            f"{router.loopback} handles named an address that only their own machine reaches",
            "set VLLM_NIXL_SIDE_CHANNEL_HOST of each engine to an address that the others reach",
        )


def _reached(url: str) -> str | None:
    """What to do about a URL that OpenAI's clients take, and nothing else."""
    return "give the URL without /v1" if url.endswith("/v1") else None


def _answers(fleet: FleetFacts) -> Iterator[Finding]:
    for engine in fleet.engines:
        kind = engine.asked.kind
        if kind is not None:
            check, remedy = _TROUBLES[kind]
            remedy = _reached(engine.asked.url) or remedy
            # The router reaches it, perhaps by a network that this machine is not in.
            severity = Severity.WARNING if engine.found and kind is Trouble.SILENT else None
            what = (
                (engine.asked.trouble or "").partition(": ")[0].replace("router's key", "key that was given")
            )
            yield check.finding(engine.name, what, remedy, severity=severity)
        elif engine.asked.info is None:
            remedy = "start it by antiphon engine, or with the plug-in's flags (antiphon engine --print)"
            yield checks.ENGINE_STOCK.finding(engine.name, "is a stock engine", remedy)


def _versions(fleet: FleetFacts) -> Iterator[Finding]:
    for engine, info in _informed(fleet):
        if remedy := too_old(info.vllm):
            yield checks.ENGINE_VERSION.finding(engine.name, f"vLLM {info.vllm}", remedy)
        if (found := numbers(info.nixl)) and found < MINIMUM_NIXL:
            yield checks.ENGINE_VERSION.finding(
                engine.name,
                f"NIXL {info.nixl}",
                INSTALL_NIXL,
                why=f"LIBFABRIC hangs before {text(MINIMUM_NIXL)}",
                severity=Severity.WARNING,
            )


def _ids(fleet: FleetFacts) -> Iterator[Finding]:
    informed = list(_informed(fleet))
    remedy = "leave engine_id out of --kv-transfer-config: each start then draws its own"
    for (left, one), (right, other) in combinations(informed, 2):
        if one.engine_id == other.engine_id and left.asked.url != right.asked.url:
            subject = f"{left.name} and {right.name}"
            yield checks.ENGINE_ID.finding(subject, f"both have engine_id {one.engine_id}", remedy)
    for engine, info in informed:
        if not _UUID.fullmatch(info.engine_id):
            what = f"engine_id {info.engine_id} looks fixed"
            yield checks.ENGINE_ID.finding(engine.name, what, remedy, severity=Severity.WARNING)


def _pairs(fleet: FleetFacts) -> Iterator[Finding]:
    informed = list(_informed(fleet))
    for p, prefill in informed:
        for d, decode in informed:
            if (p.asked.role, d.asked.role) != ("prefill", "decode"):
                continue
            subject = f"{p.name} and {d.name}"
            if reason := incompatible(prefill, decode):
                yield checks.PAIR.finding(subject, reason, "run both with the same build and settings")
            if prefill.reuse != decode.reuse:
                on, off = ("prefill", "decode") if prefill.reuse else ("decode", "prefill")
                yield checks.ONE_SIDED.finding(
                    subject,
                    f"reuse is on for {on} and off for {off}",
                    f"start the {off} engine with what the {on} engine has (antiphon engine --print)",
                )


def _reuse(fleet: FleetFacts) -> Iterator[Finding]:
    for engine, info in _informed(fleet):
        if not info.reuse:
            what = f"declines reuse: {info.reuse_reason or 'no reason given'}"
            yield checks.REUSE.finding(engine.name, what, "mend what it says, or know that turns stay cold")
        elif engine.asked.role == "prefill" and info.threshold > LARGE_THRESHOLD:
            what = f"kv_recompute_threshold = {info.threshold} tokens"
            yield checks.THRESHOLD.finding(engine.name, what, "lower it; vLLM's own is 64")


def _leases(fleet: FleetFacts) -> Iterator[Finding]:
    times = fleet.times
    if not times.keeps:
        return
    for engine, info in _informed(fleet):
        if engine.asked.role != "decode" or not info.reuse:
            continue
        for said in lease_faults(engine.asked.url, info, times.lease_ttl, times.lease_margin):
            what, _, remedy = said.removeprefix(f"decode {engine.asked.url}: ").rpartition(": ")
            yield checks.LEASES.finding(engine.name, what, remedy, severity=Severity.ERROR)
        first = info.leases.decode
        if times.lease_margin < first <= times.renew_interval + times.lease_margin:
            what = f"decoder_kv_blocks_ttl = {first:g} s ends before its first renewal"
            yield checks.LEASES.finding(engine.name, what, "raise decoder_kv_blocks_ttl to 60")
        if first > times.keep:
            what = f"decoder_kv_blocks_ttl = {first:g} s, longer than a router keeps KV ({times.keep:g} s)"
            yield checks.LEASES.finding(
                engine.name, what, "lower decoder_kv_blocks_ttl to 60: routers renew it"
            )
        room = info.capacity * times.keep_share
        if info.capacity and engine.context is not None and room < engine.context:
            yield checks.CAPACITY.finding(
                engine.name,
                f"{info.capacity} tokens of KV, keep_share {times.keep_share:g}: {room:.0f} may rest, one "
                f"conversation may have {engine.context}",
                "give it more KV memory, raise keep_share, or lower --max-model-len",
            )


def _mishaps(fleet: FleetFacts) -> Iterator[Finding]:
    for engine in fleet.engines:
        if engine.mishaps is None:
            continue
        if failed := engine.mishaps.failed:
            remedy = "see its log (NIXL), and the side channel's address and port of the other engine"
            yield checks.TRANSFERS.finding(
                engine.name, f"{failed} transfers of KV failed since its start", remedy
            )
        if late := engine.mishaps.late:
            remedy = "raise kv_lease_duration, and see why decode reads late: is it overloaded?"
            yield checks.LATE.finding(engine.name, f"{late} reads ended after their lease", remedy)


def _informed(fleet: FleetFacts) -> Iterator[tuple[EngineSeen, Info]]:
    for engine in fleet.engines:
        if engine.asked.info is not None:
            yield engine, engine.asked.info


RULES: tuple[Rule, ...] = (_router, _answers, _versions, _ids, _pairs, _reuse, _leases, _mishaps)
