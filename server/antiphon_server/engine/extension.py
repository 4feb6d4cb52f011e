"""Calls that the API server makes on every worker rank (``--worker-extension-cls``)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

if TYPE_CHECKING:
    from antiphon_server.engine.connector import AntiphonConnector


def _connector() -> AntiphonConnector:
    connector: AntiphonConnector = get_kv_transfer_group()
    return connector


class LeaseExtension:
    """Mixed into vLLM's worker class; reached by ``collective_rpc``."""

    def antiphon_leases(
        self, renew: list[tuple[str, float]], release: list[str], legs: list[str]
    ) -> dict[str, Any]:
        """Move and end leases on this rank. ``legs``: see :class:`antiphon_server.protocol.LeaseRequest`.

        ``granted``: id -> seconds from now, 0 for a release, None if unknown. ``pinned``: leases held.
        """
        book, now = _connector().leases, time.perf_counter()
        granted: dict[str, float | None] = {
            request_id: book.renew(request_id, ttl, now) for request_id, ttl in renew
        }
        granted |= {request_id: 0.0 if book.release(request_id, now) else None for request_id in release}
        for leg in legs:
            book.release_leg(leg, now)
        return {"granted": granted, "pinned": sum(end > now for end in book.deadlines.values())}

    def antiphon_describe(self) -> dict[str, Any]:
        """See :meth:`AntiphonConnector.describe`."""
        return _connector().describe()
