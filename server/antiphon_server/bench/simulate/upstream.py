"""What the router asks engines about themselves, answered within the process: health, info, leases,
memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon_server.bench.simulate.engine import Engine
from antiphon_server.protocol import INFO_PATH, LEASES_PATH, Info, LeaseLimits, LeaseReply, LeaseRequest
from antiphon_server.router.fleet.worker import Role
from antiphon_server.router.upstream.upstream import Origin, Timeouts, Upstream

LONGEST_LEASE = 600.0
"""Seconds that a renewal grants at most."""
MODEL = "modelled"


class Reply:
    """A reply that is there at once."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self._body = body

    async def read(self, limit: int) -> bytes:
        return self._body

    def close(self) -> None:
        pass


class ModelledUpstream(Upstream):
    """``engines``: by the authority of their URLs."""

    def __init__(self, engines: Mapping[str, tuple[Role, Engine]]) -> None:
        super().__init__(Timeouts(1.0, 1.0, 1.0))
        self._engines = engines

    async def send(  # type: ignore[override]
        self, origin: Origin, method: str, path: str, *, body: bytes = b"", **_: Any
    ) -> Reply:
        role, engine = self._engines[origin.authority]
        match path:
            case "/health":
                return Reply(200, b"")
            case "/metrics":
                return Reply(200, _metrics(engine))
            case _ if path == INFO_PATH:
                return Reply(200, msgspec.json.encode(_info(role, engine)))
            case _ if path == LEASES_PATH:
                request = msgspec.json.decode(body, type=LeaseRequest)
                return Reply(200, msgspec.json.encode(_leases(engine, request)))
        return Reply(404, b"")


def _info(role: Role, engine: Engine) -> Info:
    fleet = engine.fleet
    return Info(
        protocol=1,
        engine_id=engine.name,
        epoch=engine.name,
        role=role,
        model=MODEL,
        vllm="modelled",
        nixl="modelled",
        block_size=fleet.block,
        kv_groups=["full_attention"],
        tensor_parallel=1,
        data_parallel=1,
        threshold=fleet.threshold,
        capacity=engine.memory.capacity,
        leases=LeaseLimits(decode=fleet.decode_lease, prefill=fleet.prefill_lease, longest=LONGEST_LEASE),
        reuse=True,
        prefix_caching=role == "decode" or fleet.prefill_cache,
    )


def _metrics(engine: Engine) -> bytes:
    usage = engine.memory.used / engine.memory.capacity
    return f"vllm:kv_cache_usage_perc {usage}\nvllm:num_requests_waiting {engine.waiting}\n".encode()


def _leases(engine: Engine, request: LeaseRequest) -> LeaseReply:
    reply: dict[str, float | str] = {}
    now = engine.loop.time()
    for renewal in request.renew:
        lease = engine.leases.get(renewal.id)
        if lease is None:
            reply[renewal.id] = "unknown"
        else:
            lease.deadline = now + min(renewal.ttl, LONGEST_LEASE)
            reply[renewal.id] = lease.deadline
    for name in request.release:
        reply[name] = now if engine.end(name) else "unknown"
    return LeaseReply(leases=reply, pinned=len(engine.leases))  # type: ignore[arg-type]
