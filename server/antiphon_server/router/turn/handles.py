"""What is wrong with handles that engines return: told before it costs all reuse in silence."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable
from functools import lru_cache
from weakref import WeakKeyDictionary

from prometheus_client import Counter

from antiphon_server.protocol import HANDLE_KEY, Seal
from antiphon_server.router.fleet.worker import Engine, Worker

log = logging.getLogger(__name__)


class Handles:
    """Counts handles in ``counted`` by what is wrong with them, and says it once of each engine's life."""

    def __init__(self, counted: Counter) -> None:
        self._counted = counted
        self._told: WeakKeyDictionary[Engine, dict[str, str | None]] = WeakKeyDictionary()

    def usable(self, lease: object, seal: Seal | None, holder: Worker) -> bool:
        """The handle of a finished turn has what keeping its KV takes. An engine that gives its keys other
        names answers all the same, so nothing else would show that nothing is kept
        (https://github.com/llm-d/llm-d-router/issues/2140)."""
        missing = [] if isinstance(lease, str) else ["remote_request_id"]
        if seal is None and holder.reuse:
            missing.append(HANDLE_KEY)
        if missing:
            self._counted.labels("faulty").inc()
            if self._is_news("faulty", holder):
                remedy = "run the same vLLM and antiphon everywhere"
                told = {"worker": holder.url, "missing": ", ".join(missing), "remedy": remedy}
                log.warning("handle.faulty", extra=told)
        return not missing

    def look(self, host: object, holder: Worker, readers: Iterable[Worker]) -> None:
        """``host``: where the handle says that ``readers`` find the KV
        (https://github.com/vllm-project/vllm/issues/27083). It is only told: engines that meet the wrong one
        know it by its id and read nothing, and a machine may have two names."""
        if isinstance(host, str) and means_itself(host) and any(_apart(holder, reader) for reader in readers):
            self._counted.labels("loopback").inc()
            if self._is_news("loopback", holder):
                remedy = "set VLLM_NIXL_SIDE_CHANNEL_HOST of that engine to an address that the others reach"
                told = {"worker": holder.url, "remote_host": host, "remedy": remedy}
                log.warning("handle.loopback", extra=told)

    def _is_news(self, fault: str, holder: Worker) -> bool:
        told = self._told.setdefault(holder.engine, {})
        if fault in told and told[fault] == holder.epoch:
            return False
        told[fault] = holder.epoch
        return True


@lru_cache(maxsize=1024)
def means_itself(host: str) -> bool:
    """Means another machine to everyone who reads it: loopback, or no address at all."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _apart(one: Worker, other: Worker) -> bool:
    """By their URLs they are on two machines."""
    return apart(one.origin.host, other.origin.host)


def apart(left: str, right: str) -> bool:
    """These hosts are two machines, by their names."""
    return left != right and not (means_itself(left) and means_itself(right))
