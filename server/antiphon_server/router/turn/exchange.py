"""One leg as a request to an engine, and how its failures are told apart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from antiphon_server.protocol import PROTOCOL, PROTOCOL_HEADER
from antiphon_server.router.errors import EngineFailedError, EngineSilentError, KeyRefusedError, RouterError
from antiphon_server.router.fleet.breaker import blames_engine
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.state import State
from antiphon_server.router.turn.request import TurnRequest
from antiphon_server.router.upstream.connection import TimedOutError, UnsentError, UpstreamError
from antiphon_server.router.upstream.upstream import Response, Sending, Timeouts

_TRACING = ("traceparent", "tracestate")
_OVERLOADED = {408, 425, 429}


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's error reply, to be handed to the client as it is."""

    status: int
    content_type: str
    body: bytes
    retry_after: str | None = None


class LegFailedError(Exception):
    """A leg failed in a way that another engine may not. ``cause``: what the client gets if none does.

    ``over``: the engine is known to be done with the leg, so nobody reads the KV that the leg named.
    """

    def __init__(self, cause: RouterError | Answer, worker: Worker, *, over: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.worker = worker
        self.over = over

    @property
    def may_be_transfer(self) -> bool:
        """A transfer that fails shows as a server error or as silence, and as nothing else."""
        if isinstance(self.cause, Answer):
            answer = self.cause
            return blames_engine(answer.status, answer.body, retry_after=answer.retry_after is not None)
        return isinstance(self.cause, EngineSilentError)


class RejectedError(Exception):
    """An engine found fault with the client's request: no other engine would answer otherwise."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(f"engine answers {answer.status}")
        self.answer = answer


class Exchange:
    """Sends legs. ``headers`` of a client are not forwarded, but for its trace."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def open(
        self,
        worker: Worker,
        request: TurnRequest,
        body: bytes,
        *,
        request_id: str,
        first: float,
        repeat: bool,
    ) -> Response:
        """Send a leg; its reply when the engine answers 200.

        Raises:
            LegFailedError, RejectedError
        """
        leg = self.leg(worker, request, body, request_id=request_id, first=first, repeat=repeat)
        try:
            return await leg.opened()
        except asyncio.CancelledError:
            leg.close()
            raise

    def leg(
        self,
        worker: Worker,
        request: TurnRequest,
        body: bytes,
        *,
        request_id: str,
        first: float,
        repeat: bool,
    ) -> Leg:
        """A leg that is not sent yet. ``first``: seconds until its reply's head. ``repeat``: it may be sent
        twice."""
        settings = self._state.settings
        headers = [
            ("Content-Type", "application/json"),
            (PROTOCOL_HEADER, str(PROTOCOL)),
            ("X-Request-Id", request_id),
            *worker.headers,
            *self._state.engine_headers,
            *((name, request.headers[name]) for name in _TRACING if name in request.headers),
        ]
        sending = Sending(
            self._state.upstream,
            worker.origin,
            "POST",
            request.path,
            headers=headers,
            body=body,
            timeouts=Timeouts(settings.connect_timeout, first, settings.idle_timeout),
            repeat=repeat,
        )
        return Leg(self, worker, sending, settings.max_reply)

    async def read(self, worker: Worker, response: Response) -> bytes:
        """The whole body of a reply.

        Raises:
            LegFailedError
        """
        try:
            content = await response.read(self._state.settings.max_reply)
        except UpstreamError as error:
            raise self.failed(worker, error) from error
        finally:
            response.close()
        worker.succeeded(self._state.clock())
        return content

    def failed(self, worker: Worker, error: UpstreamError) -> LegFailedError:
        """The leg's end when the connection failed; has the engine probed."""
        return LegFailedError(self.broken(worker, error), worker, over=isinstance(error, UnsentError))

    def broken(self, worker: Worker, error: UpstreamError) -> RouterError:
        """What the client is told when the connection failed; has the engine probed."""
        worker.failed(self._state.clock())
        self._state.workers.suspect(worker, gone=isinstance(error, UnsentError) and error.refused)
        cause = str(error).removeprefix(f"{worker.origin.authority}: ")
        if isinstance(error, TimedOutError):
            return EngineSilentError(f"the {worker.role} engine kept silent: {cause}")
        return EngineFailedError(f"the {worker.role} engine failed: {cause}")

    def raise_for(self, worker: Worker, response: Response, content: bytes) -> None:
        """Say what an engine's error means.

        Raises:
            LegFailedError, RejectedError
        """
        status = response.status
        if status in {401, 403}:
            worker.failed(self._state.clock())
            raise LegFailedError(KeyRefusedError(worker.role), worker, over=True)
        content_type = (response.header(b"content-type") or b"application/json").decode("latin-1")
        retry_after = response.header(b"retry-after")
        answer = Answer(status, content_type, content, retry_after.decode("latin-1") if retry_after else None)
        if status < 400 or blames_engine(status, content, retry_after=retry_after is not None):
            worker.failed(self._state.clock())
            self._state.workers.suspect(worker)
            raise LegFailedError(answer, worker, over=True)
        if status in _OVERLOADED or status >= 500:
            raise LegFailedError(answer, worker, over=True)
        raise RejectedError(answer)


class Leg:
    """A leg on its way. Who is cancelled while it waits for it leaves the leg as it is: it can be waited for
    again, and has to be closed otherwise."""

    def __init__(self, exchange: Exchange, worker: Worker, sending: Sending, longest: int) -> None:
        self._exchange = exchange
        self._worker = worker
        self._sending = sending
        self._longest = longest
        self._response: Response | None = None

    async def opened(self) -> Response:
        """Its reply when the engine answers 200.

        Raises:
            LegFailedError, RejectedError
        """
        try:
            response = self._response
            if response is None:
                response = self._response = await self._sending.reply()
            if response.status == 200:
                return response
            content = await response.read(self._longest)
        except UpstreamError as error:
            self.close()
            raise self._exchange.failed(self._worker, error) from error
        self._exchange.raise_for(self._worker, response, content)
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Wait no more; the engine sees its client leave."""
        if self._response is not None:
            self._response.close()
        else:
            self._sending.close()


class InFlight:
    """Counts a leg on its worker, whatever happens."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __enter__(self) -> None:
        self._worker.in_flight += 1

    def __exit__(self, *_: object) -> None:
        self._worker.in_flight -= 1
