"""One leg as a request to an engine, and how its failures are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from antiphon_server.protocol import LEG_HEADER, PROTOCOL, PROTOCOL_HEADER
from antiphon_server.router.errors import EngineFailedError, EngineSilentError, KeyRefusedError, RouterError
from antiphon_server.router.fleet.breaker import blames_engine
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.legs import CutOffError
from antiphon_server.router.state import State
from antiphon_server.router.turn.request import TurnRequest
from antiphon_server.router.upstream.connection import (
    DisconnectedError,
    TimedOutError,
    UnsentError,
    UpstreamError,
)
from antiphon_server.router.upstream.upstream import Response, Sending, Timeouts

T = TypeVar("T")

_LEG_HEADER = LEG_HEADER.lower().encode()
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
        """A leg that is not sent yet. ``request_id``: of no other leg, ever. ``first``: seconds until its
        reply's head. ``repeat``: it may be sent twice."""
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
        return Leg(self, worker, sending, request_id, settings.max_reply)

    def forget(self, worker: Worker, request_id: str) -> None:
        """Let go of what an engine keeps of a leg."""
        self._state.leases.release_leg(worker, request_id)

    def succeeded(self, worker: Worker) -> None:
        """The leg's whole reply has come."""
        worker.succeeded(self._state.clock())

    def broken(self, worker: Worker, error: UpstreamError | CutOffError) -> RouterError:
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

    def __init__(
        self, exchange: Exchange, worker: Worker, sending: Sending, request_id: str, longest: int
    ) -> None:
        self._exchange = exchange
        self._worker = worker
        self._sending = sending
        self._id = request_id
        self._longest = longest
        self._settled = False  # what the engine keeps of it is nothing, is somebody's, or was let go of
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
                self._mine(response)
            if response.status == 200:
                return response
            content = await response.read(self._longest)
        except UpstreamError as error:
            raise self.failed(error) from error
        self._exchange.raise_for(self._worker, response, content)
        raise AssertionError("unreachable")

    async def read(self, parse: Callable[[bytes], T]) -> T:
        """The whole body of its reply, as ``parse`` has it, which raises CutOffError where it is none.

        Raises:
            LegFailedError, RejectedError
        """
        response = await self.opened()
        try:
            parsed = parse(await response.read(self._longest))
        except (UpstreamError, CutOffError) as error:
            raise self.failed(error) from error
        self._exchange.succeeded(self._worker)
        return parsed

    def close(self) -> None:
        """Wait no more. The engine sees its client leave; what it kept nevertheless, because it had finished
        by then, it lets go."""
        if self._response is None:
            self._sending.close()
        elif self._response.over:
            return
        else:
            self._response.close()
        self._lost()

    def handle_came(self) -> None:
        """What the engine keeps of the leg is somebody's from here on, and lasts though the leg be closed."""
        self._settled = True

    def failed(self, error: UpstreamError | CutOffError) -> LegFailedError:
        """The leg's end when its connection failed or its reply is none; has the engine probed."""
        # Whatever sends half a reply is done with the leg, if it is the engine.
        done = isinstance(error, CutOffError) and self._worker.engine.names_legs
        return LegFailedError(self.broken(error), self._worker, over=done or isinstance(error, UnsentError))

    def broken(self, error: UpstreamError | CutOffError) -> RouterError:
        """What the client is told then; has the engine probed."""
        if isinstance(error, UnsentError):
            self._settled = True
        self._lost()
        return self._exchange.broken(self._worker, error)

    def _lost(self) -> None:
        """It ended before it said what the engine keeps of it."""
        if not self._settled:
            self._settled = True
            self._exchange.forget(self._worker, self._id)

    def _mine(self, response: Response) -> None:
        """A reply that nobody asked for, from an engine or from a proxy before it, looks like the next leg's.

        Raises:
            DisconnectedError: it is not this leg's.
        """
        said = response.header(_LEG_HEADER)
        named = said is not None or (response.status == 200 and self._worker.engine.names_legs)
        if named and said != self._id.encode("latin-1"):
            self.close()
            raise DisconnectedError(
                f"its reply does not name the request ({LEG_HEADER}): it is another's, or something between "
                "router and engine answers in its place, drops headers or replaces X-Request-Id"
            )


class InFlight:
    """Counts a leg on its worker, whatever happens."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __enter__(self) -> None:
        self._worker.in_flight += 1

    def __exit__(self, *_: object) -> None:
        self._worker.in_flight -= 1
