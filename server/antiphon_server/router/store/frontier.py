"""The frontier of a conversation: where the KV of its last turn lives, and what hands it out once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from antiphon_server.protocol import Handle
from antiphon_server.router.gate.identity import Key
from antiphon_server.router.plan.extent import Extent
from antiphon_server.router.store.packed import unpack


@dataclass(frozen=True, slots=True)
class Frontier:
    """Last handle of a conversation.

    ``handle``: as decode returned it, packed because a parsed one is many times larger.
    ``lease``: its ``remote_request_id``. ``worker``, ``epoch``: the decode engine that holds the KV, and
    which life of it. ``tokens``: tokens it stands for, ``prompt_tokens``: those of them that were the prompt
    (0 if unknown). ``extent``: what the prompt looked like to the router. ``deadline``: when the lease ends,
    and ``idle_since``: when the turn ended, both in seconds on the router's own clock. ``expiry``: the
    lease's end on the engine's clock after a renewal, None before.
    """

    key: Key
    handle: bytes
    lease: str
    worker: str
    epoch: str
    tokens: int
    deadline: float
    idle_since: float
    prompt_tokens: int = 0
    extent: Extent | None = None
    expiry: float | None = None
    began: float = 0.0

    def params(self) -> Handle:
        """The handle to send. Prefill declines a pull shortly before the deadline it reads there, so a
        renewed one goes in."""
        handle = unpack(self.handle)
        return handle if self.expiry is None else {**handle, "remote_blocks_expiry_time": self.expiry}


class FrontierStore(Protocol):
    """Where frontiers live, for one router or for several. Each is handed out at most once; what falls out
    is returned so that it gets released. A router keeps alive what it recorded or adopted."""

    async def start(self) -> None:
        """Connect, where there is something to connect to. Never fails: see ``degraded``."""

    async def stop(self) -> None:
        """Disconnect."""

    @property
    def degraded(self) -> bool:
        """True while frontiers are not shared with other routers although they should be."""

    @property
    def at_hand(self) -> bool:
        """No call ever waits, so that none can be cut short."""

    async def take(self, key: Key) -> Frontier | None:
        """Remove and return the key's frontier, atomically."""

    async def record(self, frontier: Frontier) -> list[Frontier]:
        """Put the newest frontier of its key. Returns those that it displaced; itself, if it is refused: a
        turn that ended later has recorded, the conversation was closed after the turn began, or the engine
        has a new life."""

    async def renewed(self, old: Frontier, new: Frontier) -> bool:
        """Replace ``old`` by ``new``, which differs in ``deadline`` and ``expiry``, unless somebody took or
        replaced it meanwhile."""

    async def remove(self, frontiers: Iterable[Frontier]) -> list[Frontier]:
        """Remove these. Returns those that were still there: they are the caller's to release."""

    async def close(self, tenant: str, conversation: str) -> list[Frontier]:
        """End a conversation of any model and salt: remove and return its frontiers, and refuse those of its
        turns in flight, on whichever router."""

    async def fence(self, worker: str, epoch: str) -> None:
        """The worker lives its life ``epoch``: drop the frontiers of its earlier ones, refuse late ones. A
        life that was once over never counts again."""

    async def leave(self) -> list[Frontier]:
        """This router stops. Remove and return what nobody will keep alive: it is to be released."""

    async def of(self, tenant: str, conversation: str) -> list[Frontier]:
        """All frontiers of a conversation, whoever recorded them: any model, any salt."""

    async def held(self) -> list[Frontier]:
        """Those that this router keeps alive, least recent first."""

    async def tokens(self, worker: str) -> int:
        """Tokens of KV that all frontiers on a worker stand for, whoever recorded them."""
