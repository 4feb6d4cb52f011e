"""What ``antiphon check-config --probe`` finds out: which engines answer, and whether they go together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import httpx
import msgspec

from antiphon_server.protocol import INFO_PATH, PROTOCOL, PROTOCOL_HEADER, Info, LeaseLimits
from antiphon_server.router.config.bounded import Bounded
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.fleet.discovery import ExpiredError, RefusedError, find, selectors
from antiphon_server.router.fleet.pairs import incompatible
from antiphon_server.router.fleet.workers import Role


class Trouble(StrEnum):
    """Kinds of what keeps an engine from serving as it is named."""

    SILENT = "silent"
    UNHEALTHY = "unhealthy"
    KEY = "key"
    MALFORMED = "malformed"
    PROTOCOL = "protocol"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Engine:
    """What one engine answered. ``trouble``: why it cannot serve as named; ``kind`` of trouble. ``info``:
    None on a stock one."""

    role: Role
    url: str
    info: Info | None = None
    trouble: str | None = None
    kind: Trouble | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """``lines``: one an engine, then what does not go together. ``verdict``: what the router would do."""

    lines: list[str] = field(default_factory=list)
    verdict: str = ""
    sound: bool = True


def ask_engines(settings: RouterSettings) -> Report:
    """Ask every engine that is named, and those that discovery finds now, at once."""
    return asyncio.run(_ask_all(settings))


async def _ask_all(settings: RouterSettings) -> Report:
    named: list[tuple[Role, str]] = [
        *(("prefill", url) for url in settings.prefill),
        *(("decode", url) for url in settings.decode),
    ]
    undiscovered = None
    if selectors(settings):
        try:
            named += [engine for engine in await find(settings) if engine not in named]
        except (ValueError, RefusedError, ExpiredError, httpx.HTTPError) as error:
            undiscovered = f"discovery fails: {error or type(error).__name__}"
    key = settings.engine_key.get_secret_value() if settings.engine_key is not None else None
    found = report(await ask_each(named, key, settings.probe_timeout), settings)
    if undiscovered is None:
        return found
    return Report([*found.lines, undiscovered], found.verdict, sound=False)


async def ask_each(named: Sequence[tuple[Role, str]], key: str | None, patience: float) -> list[Engine]:
    """What each engine answers, asked all at once. ``patience``: seconds for one answer."""
    headers = {PROTOCOL_HEADER: str(PROTOCOL)}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    async with httpx.AsyncClient(
        headers=headers, timeout=patience, trust_env=False, transport=Bounded()
    ) as client:
        return list(await asyncio.gather(*(_ask(client, role, url) for role, url in named)))


async def _ask(client: httpx.AsyncClient, role: Role, url: str) -> Engine:
    try:
        health = await client.get(f"{url}/health")
        if health.status_code != 200:
            trouble = f"/health answers {health.status_code}: see the engine's log"
            return Engine(role, url, trouble=trouble, kind=Trouble.UNHEALTHY)
        reply = await client.get(url + INFO_PATH)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        trouble = f"does not answer ({error or type(error).__name__}): is it started?"
        return Engine(role, url, trouble=trouble, kind=Trouble.SILENT)
    if reply.status_code in {401, 403}:
        trouble = "refuses the router's key: set engine_key to the engine's"
        return Engine(role, url, trouble=trouble, kind=Trouble.KEY)
    if reply.status_code != 200:
        return Engine(role, url)
    try:
        info = msgspec.json.decode(reply.content, type=Info)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        trouble = f"{INFO_PATH} is malformed ({error}): install one antiphon everywhere"
        return Engine(role, url, trouble=trouble, kind=Trouble.MALFORMED)
    if info.protocol != PROTOCOL:
        trouble = f"speaks protocol {info.protocol}, not {PROTOCOL}: install one antiphon everywhere"
        return Engine(role, url, trouble=trouble, kind=Trouble.PROTOCOL)
    if info.role not in {role, "both"}:
        return Engine(role, url, info, f"is a {info.role} engine: name it by --{info.role}", Trouble.ROLE)
    return Engine(role, url, info)


def report(engines: Sequence[Engine], settings: RouterSettings) -> Report:
    """What the answers mean for the settings."""
    lines = [_line(engine) for engine in engines]
    sound = all(engine.trouble is None for engine in engines)
    able = [engine for engine in engines if engine.trouble is None]
    prefill = [engine for engine in able if engine.role == "prefill"]
    decode = [engine for engine in able if engine.role == "decode"]
    pairs, reusing = 0, 0
    for p in prefill:
        for d in decode:
            if reason := incompatible(p.info, d.info):
                lines.append(f"{p.url} and {d.url} are not used together: {reason}")
                sound = False
                continue
            pairs += 1
            reusing += all(e.info is not None and e.info.reuse for e in (p, d))
    for engine in decode:
        if engine.info is not None and settings.keeps:
            found = lease_faults(engine.url, engine.info, settings.lease_ttl, settings.lease_margin)
            lines += found
            sound = sound and not found
    if not prefill or not decode:
        missing = "decode" if prefill else "prefill"
        return Report(lines, f"no {missing} engine can serve: the router would not be ready", False)
    kept = (
        f"{reusing} of them with reuse"
        if "reuse" in settings.paths
        else "none with reuse, which paths leave out"
    )
    return Report(lines, f"the router would serve over {pairs} pairs of engines, {kept}", sound and pairs > 0)


def _line(engine: Engine) -> str:
    start = f"{engine.role} {engine.url}: "
    if engine.trouble is not None:
        return start + engine.trouble
    if engine.info is None:
        return start + "a stock engine, served as plain P/D: start it with antiphon's plug-in for reuse"
    info = engine.info
    reuse = "reuse" if info.reuse else f"no reuse ({info.reuse_reason})"
    return (
        f"{start}{info.model}, vLLM {info.vllm}, NIXL {info.nixl}, TP {info.tensor_parallel}, "
        f"blocks of {info.block_size}, {info.capacity} tokens of KV, leases of {info.leases.decode:g} s, "
        f"at most {info.leases.longest:g} s, {reuse}"
    )


def lease_faults(url: str, info: Info, lease_ttl: float, lease_margin: float) -> list[str]:
    """What the router's settings ask of a decode engine's leases, and do not get."""
    found = lease_limit_faults(info.leases, lease_ttl, lease_margin)
    return [f"decode {url}: {what}: {remedy}" for what, remedy in found]


def lease_limit_faults(limits: LeaseLimits, lease_ttl: float, lease_margin: float) -> list[tuple[str, str]]:
    """The same of its limits: what is asked in vain, and what to do."""
    found = []
    if lease_ttl > limits.longest:
        found.append(
            (
                f"grants {limits.longest:g} s at most, lease_ttl asks for {lease_ttl:g} s",
                "lower lease_ttl or raise the engine's limit",
            )
        )
    shortest = min(limits.decode, limits.longest, lease_ttl)
    if shortest <= lease_margin:
        found.append(
            (
                f"leases of {shortest:g} s end within lease_margin {lease_margin:g} s, "
                "so nothing would be reused",
                "raise the engine's lease or lower lease_margin",
            )
        )
    return found
