"""The beginning of decode's reply: up to where it is certain that this engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from antiphon_server.protocol import PROMPT_HEADER, Prompt, read_prompt
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.legs import CutOffError, Surface, begun, failure
from antiphon_server.router.turn.exchange import Answer, Leg, LegFailedError
from antiphon_server.router.upstream.connection import UpstreamError
from antiphon_server.router.upstream.upstream import Response

_PROMPT_HEADER = PROMPT_HEADER.lower().encode()


@dataclass(frozen=True, slots=True)
class Begun:
    """A ``leg`` that decode has begun to answer. ``first``: a stream's first bytes, None for a whole reply.
    ``prompt``: what decode said of the prompt. ``seconds``: from the leg's start to here."""

    leg: Leg
    response: Response
    first: bytes | None
    prompt: Prompt | None
    seconds: float

    @property
    def content_type(self) -> str:
        return (self.response.header(b"content-type") or b"application/json").decode("latin-1")


class Beginning:
    """Waits for the beginning of ``leg``'s reply. Who is cancelled meanwhile leaves all as it is: another can
    wait on in its place, without a task that the turn would have to wait for, or close it."""

    def __init__(self, leg: Leg, worker: Worker, surface: Surface, clock: Callable[[], float]) -> None:
        self._leg = leg
        self._worker = worker
        self._surface = surface
        self._clock = clock
        self._started = clock()
        self._first = b""

    async def begun(self) -> Begun:
        """Send the leg, and wait.

        Raises:
            LegFailedError, RejectedError: nothing is left to close.
        """
        try:
            return await self._begin()
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.close()
            raise

    async def _begin(self) -> Begun:
        response = await self._leg.opened()
        said = response.header(_PROMPT_HEADER)
        prompt = read_prompt(said.decode("latin-1") if said is not None else None)
        if not (response.header(b"content-type") or b"").startswith(b"text/event-stream"):
            return Begun(self._leg, response, None, prompt, self._clock() - self._started)
        worker, surface = self._worker, self._surface
        try:
            # What only says that the request was taken is held back, so that it may still go elsewhere.
            while not begun(surface, self._first):
                chunk = await response.chunk()
                if chunk is None:
                    break
                self._first += chunk
        except UpstreamError as error:
            raise self._leg.failed(error) from error
        first = self._first
        fault = failure(surface, first)
        if not first:
            raise self._leg.failed(CutOffError("its stream is empty"))
        if fault is not None:
            worker.failed(self._clock())
            answer = Answer(fault.status, "application/json", fault.payload)
            raise LegFailedError(answer, worker, over=True)
        worker.succeeded(self._clock())
        return Begun(self._leg, response, first, prompt, self._clock() - self._started)

    def close(self) -> None:
        """Wait no more; the engine sees its client leave."""
        self._leg.close()
