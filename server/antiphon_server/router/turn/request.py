"""A client's turn as it came in."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.gate.identity import Identity
from antiphon_server.router.legs import Ask
from antiphon_server.router.plan.reasons import Path

log = logging.getLogger("antiphon_server.router.turn.turn")


def _new_id() -> str:
    return secrets.token_hex(12)


@dataclass(frozen=True, slots=True)
class Forced:
    """What a turn of the router's own is to measure: it takes these engines and paths, and counts nowhere.
    ``prefill``: None for decode alone."""

    prefill: Worker | None
    decode: Worker
    paths: frozenset[Path]


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """``path``: of the endpoint, the same at the engines. ``headers``: lower-case names. ``started``:
    router's clock."""

    ask: Ask
    identity: Identity
    path: str
    headers: Mapping[str, str]
    started: float
    forced: Forced | None = None
    id: str = field(default_factory=_new_id)
    _legs: count[int] = field(default_factory=count)

    def leg_id(self, kind: str) -> str:
        """A request id that no other leg has or had; clients cannot choose it."""
        return f"{self.id}-{kind}{next(self._legs)}"

    def log(self, event: str, **fields: object) -> None:
        """A warning about this turn; never with the client's words in it."""
        log.warning(event, extra={"turn": self.id, **fields})

    def served(self, **fields: object) -> None:
        """A line of the turn log. The conversation is told by a digest of its key, so that turns of one can
        be put together and no id of a client is in it."""
        key = self.identity.key
        named = f"{key.tenant}\0{key.model}\0{key.salt}\0{key.conversation}" if key is not None else ""
        digest = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16] if named else None
        log.info(
            "turn.served", extra={"turn": self.id, "conversation": digest, "endpoint": self.path, **fields}
        )
