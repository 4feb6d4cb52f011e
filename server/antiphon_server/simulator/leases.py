"""Finished requests whose blocks stay for somebody to read, each until its deadline."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_server.protocol import Deadline, LeaseReply, LeaseRequest, of_leg
from antiphon_server.simulator.blocks import BlockPool


@dataclass(slots=True)
class Lease:
    """``deadline``: seconds on the engine's clock."""

    blocks: list[int]
    deadline: float


class Leases:
    """Leases by request id. Time is told to every call; what is past its deadline is freed first."""

    def __init__(self, pool: BlockPool, longest: float) -> None:
        self._pool = pool
        self._longest = longest
        self._leases: dict[str, Lease] = {}
        self.expired = 0

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def blocks(self) -> int:
        """Blocks that are pinned, each counted once."""
        return len({block for lease in self._leases.values() for block in lease.blocks})

    @property
    def ids(self) -> list[str]:
        """Requests that are pinned, oldest first."""
        return list(self._leases)

    @property
    def next_deadline(self) -> float | None:
        """When the first lease ends."""
        return min((lease.deadline for lease in self._leases.values()), default=None)

    def grant(self, request_id: str, blocks: list[int], deadline: float) -> None:
        """Pin blocks, whose reference passes to the lease."""
        self._leases[request_id] = Lease(blocks, deadline)

    def free(self, request_id: str) -> bool:
        """End a lease; False when there is none."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return False
        self._pool.release(lease.blocks)
        return True

    def expire(self, now: float) -> None:
        """End every lease that is past its deadline."""
        for request_id in [name for name, lease in self._leases.items() if lease.deadline <= now]:
            self.free(request_id)
            self.expired += 1

    def apply(self, request: LeaseRequest, now: float) -> LeaseReply:
        """Renew and release as asked; a renewal never grants more than the longest lease."""
        self.expire(now)
        answer: dict[str, Deadline] = {}
        for renewal in request.renew:
            lease = self._leases.get(renewal.id)
            if lease is not None:
                lease.deadline = now + min(max(renewal.ttl, 0.0), self._longest)
            answer[renewal.id] = lease.deadline if lease is not None else "unknown"
        for request_id in request.release:
            answer[request_id] = now if self.free(request_id) else "unknown"
        for leg in request.legs:
            for request_id in [name for name in self._leases if of_leg(name, leg)]:
                self.free(request_id)
        return LeaseReply(leases=answer, pinned=len(self))
