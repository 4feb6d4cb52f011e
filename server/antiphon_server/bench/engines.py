"""The engines behind a router, asked directly: counters, pins, what they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import httpx
import msgspec

from antiphon_server.counters import Counters, Page, read
from antiphon_server.protocol import INFO_PATH, LEASES_PATH, Info, LeaseReply

TIMEOUT_S = 30.0
PATIENCE_S = 15.0
POLL_S = 0.05
REST_S = 1.5
REST_PATIENCE_S = 60.0


class Engines:
    """``key``: the engines' API key."""

    def __init__(
        self,
        prefill: Sequence[str],
        decode: Sequence[str],
        *,
        key: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.prefill = tuple(prefill)
        self.decode = tuple(decode)
        self._clock = clock
        self._sleep = sleep
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # No idle connections: engines close them after some seconds, and a dead one would be met here.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(timeout=TIMEOUT_S, trust_env=False, headers=headers, limits=limits)

    def close(self) -> None:
        self._http.close()

    def prefill_counters(self) -> Counters:
        """Sum over all prefill engines."""
        return _total(self._pages(self.prefill))

    def decode_counters(self) -> Counters:
        """Sum over all decode engines."""
        return _total(self._pages(self.decode))

    def prefill_page(self) -> Page:
        """Of the first prefill engine."""
        return self._pages(self.prefill[:1])[0]

    def prefill_caching(self) -> bool | None:
        """Whether prefill keeps a prefix cache; None where that is not known."""
        said = {page.caching for page in self._pages(self.prefill)}
        return said.pop() if len(said) == 1 else None

    def forget_prefill(self) -> bool:
        """Empty prefill's prefix caches. False where engines do not offer that (it needs vLLM's
        ``VLLM_SERVER_DEV_MODE=1``).

        Raises:
            TimeoutError: blocks stayed in use.
        """
        for url in self.prefill:
            end = self._clock() + PATIENCE_S
            while True:
                reply = self._http.post(f"{url}/reset_prefix_cache")
                if reply.status_code in (404, 405):
                    return False
                if reply.status_code == 200 and reply.json().get("success", True):
                    break
                if self._clock() > end:
                    raise TimeoutError(f"{url} does not empty its prefix cache: blocks are still in use")
                self._sleep(POLL_S)
        return True

    def info(self) -> Info | None:
        """What decode says of itself; None from an engine without our plug-in."""
        reply = self._http.get(self.decode[0] + INFO_PATH)
        if reply.status_code != 200:
            return None
        return msgspec.json.decode(reply.content, type=Info)

    def pinned(self) -> int | None:
        """Finished requests whose KV any engine still keeps; None where an engine does not say."""
        pinned = 0
        for url in (*self.prefill, *self.decode):
            reply = self._http.post(url + LEASES_PATH, json={})
            if reply.status_code != 200:
                return None
            pinned += msgspec.json.decode(reply.content, type=LeaseReply).pinned
        return pinned

    def settle(self) -> tuple[int | None, float]:
        """Wait, within reason, until nothing is pinned. What is left, and after how many seconds."""
        begun = self._clock()
        while True:
            pinned = self.pinned()
            elapsed = self._clock() - begun
            if not pinned or elapsed > PATIENCE_S:
                return pinned, elapsed
            self._sleep(POLL_S)

    def rest(self) -> bool:
        """Wait, within reason, until no engine has had a request for :data:`REST_S` seconds: a router that
        has just come up measures them first. False: they are still busy."""
        begun = since = self._clock()
        while (now := self._clock()) - since < REST_S:
            if any(page.running for page in self._pages((*self.prefill, *self.decode))):
                since = now
            if now - begun > REST_PATIENCE_S:
                return False
            self._sleep(POLL_S)
        return True

    def _pages(self, urls: Sequence[str]) -> list[Page]:
        return [read(self._http.get(f"{url}/metrics").raise_for_status().text) for url in urls]


def _total(pages: Sequence[Page]) -> Counters:
    return sum((page.counters for page in pages), Counters())
