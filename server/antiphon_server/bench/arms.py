"""Ways to have the same turns served over the same engines: what benches compare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from openai import OpenAI
from rich.console import Console

import antiphon_openai
from antiphon_server.bench.site import Site, SiteError, running, site_of, stack_of
from antiphon_server.stack.ports import PortError
from antiphon_server.stack.settings import ALWAYS_REUSE, StackSettings
from antiphon_server.stack.stack import StackError

OFF = "off"
REUSE = "reuse"
APPEND = "append"
AUTO = "auto"
CONFIGURED = "configured"
NAMES = (OFF, REUSE, APPEND, AUTO)
"""Of the arms over a stack of our own."""

ROUTERS: Mapping[str, Mapping[str, str]] = {
    OFF: {"ANTIPHON_PATHS": "cold"},
    REUSE: ALWAYS_REUSE,
    APPEND: {"ANTIPHON_PATHS": "append", "ANTIPHON_CALIBRATE": "false"},
    AUTO: {},
}
"""Environment of each arm's router."""

TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Arm:
    """``router``: base URL without ``/v1``. ``stamps``: its calls carry a conversation id; without one a
    router serves plain P/D."""

    name: str
    router: str
    stamps: bool
    api_key: str = field(default="none", repr=False)

    @property
    def api(self) -> str:
        """Base URL for OpenAI clients."""
        return f"{self.router}/v1"

    def client(self, *, timeout: float = TIMEOUT_S) -> OpenAI:
        """A client of this arm; inside :func:`antiphon.conversation` its calls carry the id, if they are
        to. Close it."""
        client = OpenAI(base_url=self.api, api_key=self.api_key, timeout=timeout, max_retries=0)
        return antiphon_openai.wrap(client) if self.stamps else client


@contextlib.contextmanager
def started(
    settings: StackSettings, console: Console, names: Sequence[str] = NAMES
) -> Iterator[tuple[Site, tuple[Arm, ...]]]:
    """A stack of our own with a router for each arm, for the time of the block. It returns when the routers
    have measured the engines.

    Raises:
        SiteError: it does not start.
        ValueError: there is no such arm.
    """
    for name in names:
        if name not in ROUTERS:
            raise ValueError(f"{name!r} is no arm: take some of {', '.join(NAMES)}")
    with stack_of(replace(settings, router=False), console) as stack:
        try:
            urls = stack.add_routers({name: ROUTERS[name] for name in dict.fromkeys(names)})
        except (StackError, PortError) as error:
            raise SiteError(str(error)) from error
        found = tuple(Arm(name, url, stamps=name != OFF) for name, url in urls.items())
        with site_of(stack, found[0].router) as site:
            site.engines.rest()
            yield site, found


@contextlib.contextmanager
def given(
    routers: Sequence[str], *, key: str | None = None, model: str | None = None, api_key: str = "none"
) -> Iterator[tuple[Site, tuple[Arm, ...]]]:
    """Arms over routers that run already: ``NAME=URL`` each, or one URL, which gives ``off`` and
    ``configured``. Where no router is named ``off``, that arm asks the first one without an id.

    Raises:
        SiteError: no router of ours answers, or they do not serve the same model on the same engines.
        ValueError: a name stands twice, or a URL without a name among others.
    """
    urls = named(routers)
    off = urls.pop(OFF, None)
    if not urls:
        raise ValueError(f"--router {OFF}=... alone compares nothing: name another arm, such as auto=URL")
    off = off or next(iter(urls.values()))
    stamping = (Arm(name, url, stamps=True, api_key=api_key) for name, url in urls.items())
    found = (Arm(OFF, off, stamps=False, api_key=api_key), *stamping)
    with contextlib.ExitStack() as sites:
        first, *others = (
            sites.enter_context(running(url, key=key, model=model, api_key=api_key))
            for url in dict.fromkeys(arm.router for arm in found)
        )
        for other in others:
            if seen(other) != seen(first):
                raise SiteError(
                    f"{other.router} serves {_told(other)}, {first.router} {_told(first)}: "
                    "name routers over the same engines"
                )
        first.engines.rest()
        yield first, found


def named(routers: Sequence[str]) -> dict[str, str]:
    """URLs, without ``/v1``, by name; a single one may go without.

    Raises:
        ValueError: a name stands twice, or a URL without a name among others.
    """
    found: dict[str, str] = {}
    for text in routers:
        name, equals, url = text.partition("=")
        if not equals or "://" in name:
            if len(routers) > 1:
                raise ValueError(f"--router {text!r} among several has no name: write it like auto={text}")
            name, url = CONFIGURED, text
        if name in found:
            raise ValueError(f"--router {name}=... stands twice: give each arm a name of its own")
        found[name] = url.rstrip("/").removesuffix("/v1")
    if not found:
        raise ValueError("no --router is named")
    return found


def seen(site: Site) -> tuple[str, frozenset[str], frozenset[str]]:
    """What must be the same for all arms: the model and the engines."""
    return site.model, frozenset(site.engines.prefill), frozenset(site.engines.decode)


def _told(site: Site) -> str:
    return f"{site.model} on {', '.join((*site.engines.prefill, *site.engines.decode))}"
