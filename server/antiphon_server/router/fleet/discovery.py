"""Engines found in Kubernetes: EndpointSlices by label, listed once and watched from then on.

Those named by flags or by an administrator are left alone. When the API server cannot be reached, the engines
found last stay.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import tenacity

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.fleet.slices import Change, Slice, changes, engines_of, known
from antiphon_server.router.fleet.workers import DuplicateEngineError, Role, UnknownEngineError, Workers

log = logging.getLogger(__name__)

_GROUP = "/apis/discovery.k8s.io/v1"
_WATCH = 60
"""Seconds that the API server is asked to keep a watch. A connection that died silently is noticed soon
after."""
_SLACK = 15.0
_GONE = 410


class ExpiredError(Exception):
    """The API server no longer knows the version that we saw last: list again."""


class RefusedError(Exception):
    """The API server answered with an error. ``status``: HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the API server is and who we are to it."""

    api: str
    namespace: str
    account: Path

    @classmethod
    def of(cls, settings: RouterSettings, environ: Mapping[str, str] = os.environ) -> Cluster:
        """From the settings, else as every pod is told.

        Raises:
            ValueError: not in a pod, and not told.
        """
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        api = settings.discover_api
        if api is None and host is not None:
            api = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        if api is None:
            raise ValueError("discovery outside of a cluster: name the API server by discover_api")
        namespace = settings.discover_namespace or _read(settings.discover_account / "namespace")
        if not namespace:
            raise ValueError(
                f"no namespace in {settings.discover_account}: name the engines' by discover_namespace"
            )
        return cls(api.rstrip("/"), namespace, settings.discover_account)

    def client(self) -> httpx.AsyncClient:
        """Trusts the cluster's CA where there is one."""
        authority = self.account / "ca.crt"
        trust = ssl.create_default_context(cafile=str(authority) if authority.is_file() else None)
        timeout = httpx.Timeout(10.0, read=_WATCH + _SLACK)
        return httpx.AsyncClient(base_url=self.api, verify=trust, timeout=timeout, trust_env=False)

    def headers(self) -> dict[str, str]:
        """Read each time: Kubernetes renews the token's file."""
        token = _read(self.account / "token")
        return {"Authorization": f"Bearer {token}"} if token else {}


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def selectors(settings: RouterSettings) -> dict[Role, str]:
    """By role, of those that have one."""
    given: dict[Role, str | None] = {
        "prefill": settings.discover_prefill,
        "decode": settings.discover_decode,
    }
    return {role: selector for role, selector in given.items() if selector}


async def find(settings: RouterSettings) -> list[tuple[Role, str]]:
    """Engines that are ready now, by role and URL.

    Raises:
        ValueError: see :meth:`Cluster.of`.
        RefusedError, httpx.HTTPError: the API server refuses, or cannot be reached.
    """
    cluster = Cluster.of(settings)
    found: list[tuple[Role, str]] = []
    async with cluster.client() as client:
        for role, selector in selectors(settings).items():
            slices, _ = await Watch(cluster, client, selector).list()
            engines = engines_of(slices.values(), settings.discover_port, settings.discover_scheme)
            found += [(role, url) for url, ready in engines.items() if ready]
    return found


class Discovery:
    """One watch a role. ``pause``: most seconds before the first new try after a failure; grows to
    ``longest``. ``failed``: is told the role."""

    def __init__(
        self,
        settings: RouterSettings,
        workers: Workers,
        *,
        failed: Callable[[Role], None] = lambda role: None,
        pause: float = 0.5,
        longest: float = 30.0,
    ) -> None:
        self._workers = workers
        self._port = settings.discover_port
        self._scheme = settings.discover_scheme
        self._selectors = selectors(settings)
        self._cluster = Cluster.of(settings) if self._selectors else None
        self._failed = failed
        self._pause = pause
        self._longest = longest
        self._wait = tenacity.wait_random_exponential(multiplier=pause, max=longest)
        self._found: set[tuple[Role, str]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Begin to watch; does not wait for the first answer."""
        if self._cluster is None:
            return
        self._client = self._cluster.client()
        self._tasks = [
            asyncio.create_task(self._follow(role, selector, self._cluster, self._client))
            for role, selector in self._selectors.items()
        ]

    async def stop(self) -> None:
        """End the watches. The engines stay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _follow(self, role: Role, selector: str, cluster: Cluster, client: httpx.AsyncClient) -> None:
        """For ever: list, watch, and list again when the watch cannot go on."""
        watch = Watch(cluster, client, selector, pause=self._pause)
        before: dict[str, bool] = {}
        failures = 0
        now = asyncio.get_running_loop().time
        while True:
            began = now()
            try:
                async for slices in watch.states():
                    after = engines_of(slices, self._port, self._scheme)
                    await asyncio.gather(*(self._apply(role, change) for change in changes(before, after)))
                    before = known(before, after)
            except ExpiredError:
                log.info("discovery.expired", extra={"selector": selector})
            except Exception as error:
                self._tell(error, cluster, selector)
                self._failed(role)
            failures = 1 if now() - began > self._longest else failures + 1
            await asyncio.sleep(self._wait(_Attempt(failures)))  # type: ignore[arg-type]

    async def _apply(self, role: Role, change: Change) -> None:
        named = role, change.url
        if change.do != "add" and named not in self._found:
            return  # it was there before us
        try:
            if change.do == "add":
                await self._workers.add(role, change.url)
                self._found.add(named)
            elif change.do == "remove":
                self._found.discard(named)
                await self._workers.remove(role, change.url)
            elif change.do == "drain":
                self._workers.drain(role, change.url)
            else:
                self._workers.undrain(role, change.url)
        except DuplicateEngineError:
            log.info("discovery.known", extra={"role": role, "worker": change.url})
        except UnknownEngineError:
            log.info("discovery.unknown", extra={"role": role, "worker": change.url, "wanted": change.do})

    def _tell(self, error: Exception, cluster: Cluster, selector: str) -> None:
        extra: dict[str, Any] = {"api": cluster.api, "selector": selector, "error": str(error) or repr(error)}
        if isinstance(error, RefusedError) and error.status in {401, 403}:
            extra["remedy"] = (
                f"let the router's service account list and watch endpointslices in {cluster.namespace}"
            )
        log.warning("discovery.failed", extra=extra)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What tenacity's waits look at."""

    attempt_number: int


class Watch:
    """The slices of one selector, over time. ``pause``: most seconds between two watches."""

    def __init__(
        self, cluster: Cluster, client: httpx.AsyncClient, selector: str, *, pause: float = 0.5
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._path = f"{_GROUP}/namespaces/{cluster.namespace}/endpointslices"
        self._selector = selector
        self._pause = pause

    async def states(self) -> AsyncIterator[Sequence[Slice]]:
        """All slices at first, and again after each change.

        Raises:
            ExpiredError: begin anew.
            RefusedError, httpx.HTTPError: the API server refuses, or cannot be reached.
        """
        slices, version = await self.list()
        yield [*slices.values()]
        while True:
            async for kind, item in self._events(version):
                metadata = item.get("metadata") or {}
                version = metadata.get("resourceVersion", version)
                if kind == "BOOKMARK":
                    continue
                name = metadata["name"]
                if kind == "DELETED":
                    slices.pop(name, None)
                else:
                    slices[name] = item
                yield [*slices.values()]
            # The server ends a watch after its time. Nothing is lost: the next goes on from a version.
            await asyncio.sleep(random.uniform(0, self._pause))

    async def list(self) -> tuple[dict[str, Slice], str]:
        """Slices by name, and their version.

        Raises: as :meth:`states`.
        """
        parameters = {"labelSelector": self._selector}
        reply = await self._client.get(self._path, params=parameters, headers=self._cluster.headers())
        _check(reply.status_code, reply.content)
        body = msgspec.json.decode(reply.content)
        slices = {item["metadata"]["name"]: item for item in body.get("items") or ()}
        return slices, body["metadata"]["resourceVersion"]

    async def _events(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        parameters = {
            "labelSelector": self._selector,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH),
        }
        headers = self._cluster.headers()
        async with self._client.stream("GET", self._path, params=parameters, headers=headers) as reply:
            if reply.status_code != 200:
                _check(reply.status_code, await reply.aread())
            async for line in reply.aiter_lines():
                if not line.strip():
                    continue
                event = msgspec.json.decode(line)
                item = event["object"]
                if event["type"] == "ERROR":
                    code = item.get("code", 500)
                    if code == _GONE:
                        raise ExpiredError
                    raise RefusedError(code, item.get("message", ""))
                yield event["type"], item


def _check(status: int, body: bytes) -> None:
    if status == _GONE:
        raise ExpiredError
    if status != 200:
        raise RefusedError(status, body[:200].decode("utf-8", "replace"))
