"""What ``antiphon check-config --probe`` finds out: which engines answer, and whether they go together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import msgspec

from antiphon_server.protocol import INFO_PATH, PROTOCOL, PROTOCOL_HEADER, Info
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.fleet.discovery import ExpiredError, RefusedError, find, selectors
from antiphon_server.router.fleet.pairs import incompatible
from antiphon_server.router.fleet.workers import Role


@dataclass(frozen=True, slots=True)
class Engine:
    """What one engine answered. ``trouble``: why it cannot serve as named. ``info``: None on a stock one."""

    role: Role
    url: str
    info: Info | None = None
    trouble: str | None = None


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
    found = report(await _ask_each(named, settings), settings)
    if undiscovered is None:
        return found
    return Report([*found.lines, undiscovered], found.verdict, sound=False)


async def _ask_each(named: Sequence[tuple[Role, str]], settings: RouterSettings) -> list[Engine]:
    headers = {PROTOCOL_HEADER: str(PROTOCOL)}
    if settings.engine_key is not None:
        headers["Authorization"] = f"Bearer {settings.engine_key.get_secret_value()}"
    async with httpx.AsyncClient(headers=headers, timeout=settings.probe_timeout, trust_env=False) as client:
        return list(await asyncio.gather(*(_ask(client, role, url) for role, url in named)))


async def _ask(client: httpx.AsyncClient, role: Role, url: str) -> Engine:
    try:
        health = await client.get(f"{url}/health")
        if health.status_code != 200:
            return Engine(role, url, trouble=f"/health answers {health.status_code}: see the engine's log")
        reply = await client.get(url + INFO_PATH)
    except httpx.HTTPError as error:
        return Engine(role, url, trouble=f"does not answer ({error or type(error).__name__}): is it started?")
    if reply.status_code in {401, 403}:
        return Engine(role, url, trouble="refuses the router's key: set engine_key to the engine's")
    if reply.status_code != 200:
        return Engine(role, url)
    try:
        info = msgspec.json.decode(reply.content, type=Info)
    except msgspec.DecodeError as error:
        return Engine(
            role, url, trouble=f"{INFO_PATH} is malformed ({error}): install one antiphon everywhere"
        )
    if info.protocol != PROTOCOL:
        remedy = "install one antiphon everywhere"
        return Engine(role, url, trouble=f"speaks protocol {info.protocol}, not {PROTOCOL}: {remedy}")
    if info.role not in {role, "both"}:
        return Engine(role, url, info, f"is a {info.role} engine: name it by --{info.role}")
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
            found = list(_leases(engine.url, engine.info, settings))
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


def _leases(url: str, info: Info, settings: RouterSettings) -> list[str]:
    found = []
    if settings.lease_ttl > info.leases.longest:
        found.append(
            f"decode {url}: grants {info.leases.longest:g} s at most, lease_ttl asks for "
            f"{settings.lease_ttl:g} s: lower lease_ttl or raise the engine's limit"
        )
    shortest = min(info.leases.decode, info.leases.longest, settings.lease_ttl)
    if shortest <= settings.lease_margin:
        found.append(
            f"decode {url}: leases of {shortest:g} s end within lease_margin {settings.lease_margin:g} s, "
            "so nothing would be reused: raise the engine's lease or lower lease_margin"
        )
    return found
