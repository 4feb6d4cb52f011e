"""What an engine is asked to do, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon_server.protocol import Handle
from antiphon_server.simulator.answer import Part, Slot
from antiphon_server.simulator.sequence import Sequence as Tokens
from antiphon_server.simulator.transfer import Pull


class EngineDiedError(Exception):
    """The engine stopped or restarted under this request."""


class KvLoadError(Exception):
    """KV did not arrive and the policy is to fail: HTTP 500."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sequence to generate: the prompt's ids, what to say, at most ``limit`` tokens of it."""

    request_id: str
    prompt: Sequence[int]
    script: Sequence[Slot]
    limit: int
    salt: str | None = None
    nonce: int = 0
    handle: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One sampled token; the last has ``finish`` and ``handle``. ``cached``: prompt tokens not computed."""

    token: int
    part: Part
    logprob: float
    cached: int
    finish: str | None = None
    handle: Handle | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came in. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A sequence with KV for its whole prompt. ``cached``: prompt tokens that were local or pulled."""

    sequence: Tokens
    pull: Pull
    local: int
    pulled: int
    cached: int
