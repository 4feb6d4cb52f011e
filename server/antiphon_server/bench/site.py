"""Where to measure: a stack of our own, or one that runs already."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from antiphon_server.bench.engines import Engines
from antiphon_server.bench.refusal import plain, refusal
from antiphon_server.stack.models import ModelError
from antiphon_server.stack.ports import PortError
from antiphon_server.stack.progress import LineProgress, LiveProgress
from antiphon_server.stack.settings import StackSettings
from antiphon_server.stack.stack import Stack, StackError
from antiphon_server.stack.validate import ValidationError

TIMEOUT_S = 10.0


class SiteError(RuntimeError):
    """There is nothing to measure at; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Site:
    """A router, without ``/v1``, and the engines behind it. ``dtype``: None where it is not known.
    ``api_key``: that clients of the router send."""

    router: str
    model: str
    engines: Engines
    dtype: str | None = None
    api_key: str = field(default="none", repr=False)

    @property
    def api(self) -> str:
        """Base URL for OpenAI clients."""
        return f"{self.router}/v1"


@contextlib.contextmanager
def started(settings: StackSettings, console: Console) -> Iterator[Site]:
    """A stack of our own for the time of the block.

    Raises:
        SiteError: it does not start.
    """
    with stack_of(settings, console) as stack, site_of(stack, stack.router_url) as site:
        yield site


@contextlib.contextmanager
def stack_of(settings: StackSettings, console: Console) -> Iterator[Stack]:
    """Started, with its progress on the console; stopped when the block ends.

    Raises:
        SiteError: it does not start.
    """
    live = LiveProgress(console) if console.is_terminal else None
    stack = Stack(settings, live or LineProgress(console))
    try:
        try:
            with live or contextlib.nullcontext():
                stack.start()
        except (StackError, ModelError, PortError, ValidationError) as error:
            raise SiteError(str(error)) from error
        yield stack
    finally:
        stack.stop()


@contextlib.contextmanager
def site_of(stack: Stack, router: str) -> Iterator[Site]:
    """A running stack, seen through one of its routers."""
    assert stack.model is not None
    engines = Engines(stack.prefill_urls, stack.decode_urls, key=stack.settings.key)
    with contextlib.closing(engines):
        yield Site(router, stack.model.name, engines, stack.model.dtype)


@contextlib.contextmanager
def running(
    router: str, *, key: str | None = None, model: str | None = None, api_key: str = "none"
) -> Iterator[Site]:
    """The stack behind a router that runs already; its engines are those that the router names. ``key``: the
    engines'. ``api_key``: clients'.

    Raises:
        SiteError: no router of ours answers there.
    """
    router = router.rstrip("/").removesuffix("/v1")
    try:
        headers = {"Authorization": f"Bearer {api_key}"}
        with httpx.Client(base_url=router, timeout=TIMEOUT_S, trust_env=False, headers=headers) as http:
            prefill, decode = _workers(http.get("/metrics").raise_for_status().text)
            model = model or str(http.get("/v1/models").raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
        raise SiteError(
            refusal(error) or f"no router answers at {router} ({plain(error)}): start one with `antiphon up`"
        ) from error
    if not prefill or not decode:
        raise SiteError(f"{router} names no prefill and decode engines: it is not a router of ours")
    with contextlib.closing(Engines(prefill, decode, key=key)) as engines:
        yield Site(router, model, engines, api_key=api_key)


def _workers(page: str) -> tuple[list[str], list[str]]:
    found: dict[str, list[str]] = {"prefill": [], "decode": []}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "antiphon_worker_healthy" and sample.value == 1:
                found.setdefault(sample.labels["role"], []).append(sample.labels["worker"])
    return found["prefill"], found["decode"]
