"""How the doctor speaks HTTP: one request after the other, each bounded in time and size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx

from antiphon_server.router.config.bounded import Bounded, certificates, endless

LEGS = 10
"""Times ``--timeout`` that a probe's leg may take. Prompts are chosen so that a slow engine computes one in
some six seconds (``examine.PAIR_S``); the longest has some twice as many tokens, and others' turns
come between."""
LONGEST_LEG_S = 300.0
RUN = 60
"""Times ``--timeout`` that all of it may take: the probes of four pairs of slow engines, and the router's."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. ``answer``: for what is known at once; ``leg``: for what is computed. ``left``: that remain
    for all requests together."""

    answer: float = 5.0
    leg: float = 5.0 * LEGS
    left: Callable[[], float] = endless

    @classmethod
    def of(cls, timeout: float, clock: Callable[[], float] = time.monotonic) -> Patience:
        """From now on, where an answer may take ``timeout``."""
        end = clock() + run_s(timeout)
        return cls(timeout, min(LEGS * timeout, LONGEST_LEG_S), lambda: end - clock())


def run_s(timeout: float) -> float:
    """Seconds that all of it may take."""
    return RUN * timeout


class _Transport(httpx.BaseTransport):
    """Only a loop can end a request in the midst of a reply's head, so there is one behind each client."""

    def __init__(self, left: Callable[[], float]) -> None:
        self._runner = asyncio.Runner()
        # No idle connections: engines close them after some seconds, and a dead one would be met here.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._bounded = Bounded(httpx.AsyncHTTPTransport(verify=certificates(), limits=limits), left)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._runner.run(self._bounded.handle_async_request(request))

    def close(self) -> None:
        try:
            self._runner.run(self._bounded.aclose())
        finally:
            self._runner.close()


def client(
    timeout: float, *, left: Callable[[], float] = endless, headers: Mapping[str, str] | None = None
) -> httpx.Client:
    """``timeout``: seconds for a whole request; ``left``: for all requests together."""
    return httpx.Client(headers=headers, timeout=timeout, trust_env=False, transport=_Transport(left))
