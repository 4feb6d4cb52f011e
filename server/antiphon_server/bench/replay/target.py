"""What a replay is played against: routers of ours, a server of another kind, or a stack of our own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from rich.console import Console

from antiphon_server.bench import arms
from antiphon_server.bench.arms import Arm
from antiphon_server.bench.conditions import Conditions, conditions, cpu_name
from antiphon_server.bench.engines import Engines
from antiphon_server.bench.refusal import plain, refusal
from antiphon_server.bench.replay.ruler import Ruler, measured
from antiphon_server.bench.site import Site, SiteError, running
from antiphon_server.stack.settings import StackSettings

TIMEOUT_S = 60.0
PLAIN = "server"


@dataclass(frozen=True, slots=True)
class Target:
    """``engines``: behind all arms; None where they are not known. ``longest``: tokens of a prompt and its
    answer, if the server says."""

    arms: tuple[Arm, ...]
    model: str
    conditions: Conditions
    ruler: Ruler
    engines: Engines | None = None
    longest: int | None = None


@contextlib.contextmanager
def own_stack(
    settings: StackSettings, console: Console, names: Sequence[str], *, load: float
) -> Iterator[Target]:
    """Engines of our own, with a router for each arm.

    Raises:
        SiteError, ValueError: they do not start, or there is no such arm.
    """
    with arms.started(settings, console, names) as (site, found):
        yield _of_site(site, found, load, "none")


@contextlib.contextmanager
def given(
    routers: Sequence[str], *, compare: bool, key: str | None, model: str | None, load: float, api_key: str
) -> Iterator[Target]:
    """Servers that run already: ``NAME=URL`` each, or one URL. ``compare``: that one is asked without ids,
    too. ``key``: of the engines.

    Raises:
        SiteError, ValueError: one does not answer, or they are not comparable.
    """
    named = arms.named(routers)
    found = tuple(Arm(name, url, stamps=name != arms.OFF) for name, url in named.items())
    if compare and len(found) > 1:
        raise ValueError("--compare asks one router with and without ids: name one --router, or leave it out")
    if compare:
        found = (Arm(arms.OFF, found[0].router, stamps=False), Arm("on", found[0].router, stamps=True))
    with contextlib.ExitStack() as sites:
        opened = [_opened(sites, arm, key, model, api_key) for arm in found]
        ours = [site for site in opened if isinstance(site, Site)]
        if len(ours) == len(opened) and len({arms.seen(site) for site in ours}) == 1:
            yield _of_site(ours[0], found, load, api_key)
            return
        models = [site.model if isinstance(site, Site) else site for site in opened]
        if len(set(models)) > 1:
            told = ", ".join(f"{arm.name}: {name}" for arm, name in zip(found, models, strict=True))
            raise ValueError(f"the servers do not serve the same model ({told}): choose one with --model")
        ruler, longest = _looked_at(found[0], models[0], api_key)
        yield Target(found, models[0], _unknown(models[0], load), ruler, longest=longest)


def _opened(
    sites: contextlib.ExitStack, arm: Arm, key: str | None, model: str | None, api_key: str
) -> Site | str:
    """The site behind a router of ours; another server's model."""
    try:
        with _client(arm, api_key) as http:
            models = http.get("/v1/models").raise_for_status().json()["data"]
            model = model or str(models[0]["id"])
            ours = "antiphon_worker_healthy" in http.get("/metrics").text
    except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as error:
        raise SiteError(
            refusal(error)
            or f"no OpenAI-compatible server answers at {arm.router} ({plain(error)}): name another "
            "--router, or none, to have a stack started"
        ) from error
    if not ours:
        return model
    return sites.enter_context(running(arm.router, key=key, model=model, api_key=api_key))


def _of_site(site: Site, found: tuple[Arm, ...], load: float, api_key: str) -> Target:
    caching = {True: "on", False: "off", None: "unknown"}[site.engines.prefill_caching()]
    known = conditions(site, load=load, prefill_cache=caching)
    ruler, longest = _looked_at(found[0], site.model, api_key)
    return Target(found, site.model, known, ruler, site.engines, longest)


def _looked_at(arm: Arm, model: str, api_key: str) -> tuple[Ruler, int | None]:
    """How long text is there, and how long a prompt may be."""
    with _client(arm, api_key) as http:

        def tokenized(messages: list[dict[str, str]]) -> int:
            reply = http.post("/tokenize", json={"model": model, "messages": messages})
            return int(reply.raise_for_status().json()["count"])

        def asked(messages: list[dict[str, str]]) -> int:
            body = {"model": model, "messages": messages, "max_tokens": 1}
            reply = http.post("/v1/chat/completions", json=body)
            return int(reply.raise_for_status().json()["usage"]["prompt_tokens"])

        try:
            try:
                ruler = measured(tokenized)
            except (httpx.HTTPStatusError, KeyError, TypeError, ValueError):
                ruler = measured(asked)
            models = http.get("/v1/models").raise_for_status().json()["data"]
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise SiteError(
                refusal(error) or f"{arm.router} does not count the tokens of a prompt ({plain(error)})"
            ) from error
    own: dict[str, object] = next((entry for entry in models if entry.get("id") == model), {})
    longest = own.get("max_model_len")
    return ruler, longest if isinstance(longest, int) else None


def _client(arm: Arm, api_key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {api_key}"}
    return httpx.Client(base_url=arm.router, timeout=TIMEOUT_S, trust_env=False, headers=headers)


def _unknown(model: str, load: float) -> Conditions:
    """Of a server that tells nothing of its engines."""
    return Conditions(
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        load=round(load, 2),
        model=model,
        dtype="dtype unknown",
        block_size=None,
        vllm="unknown",
        nixl="unknown",
        engines="engines unknown",
        prefill_cache="unknown",
    )
