"""A turn from the client's request to the end of its reply: identify, attempt, attempt again elsewhere."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import tenacity

from antiphon_server.router.errors import BadRequestError, RouterError
from antiphon_server.router.gate.identity import Key, identify
from antiphon_server.router.gate.tenants import Tenant
from antiphon_server.router.keep.conversations import Visit
from antiphon_server.router.legs import FORMS, MalformedBodyError, Surface, read_ask, salted
from antiphon_server.router.state import State
from antiphon_server.router.surfaces.response_search import holder_of
from antiphon_server.router.turn.attempt import Attempt
from antiphon_server.router.turn.decode import Decode
from antiphon_server.router.turn.exchange import Answer, LegFailedError, RejectedError
from antiphon_server.router.turn.prefill import Prefill
from antiphon_server.router.turn.reply import Header, Reply
from antiphon_server.router.turn.request import Forced, TurnRequest

log = logging.getLogger(__name__)

PATHS: dict[Surface, str] = {form.surface: form.path for form in FORMS.values()}


class Turns:
    """Serves turns."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._prefill = Prefill(state)
        self._decode = Decode(state)

    async def serve(
        self,
        surface: Surface,
        data: bytes,
        headers: Mapping[str, str],
        reply: Reply,
        tenant: Tenant,
        forced: Forced | None = None,
    ) -> None:
        """One turn, from body to the end of the reply. ``headers``: lower-case names. ``forced``: for the
        router's own turns.

        Raises:
            RouterError: nothing has gone to the client.
        """
        state = self._state
        try:
            ask = read_ask(surface, data, text_only=state.workers.text_only)
        except MalformedBodyError as error:
            raise BadRequestError(str(error)) from error
        salt = state.tenants.salt(tenant, ask.named.get("cache_salt"))
        if salt is not None:
            ask = salted(ask, salt)
        ask, identity = state.responses.admit(ask, identify(ask.named, headers, tenant.name))
        if ask.previous is not None and state.responses.find(ask.previous) is None:
            holder = await holder_of(state, ask.previous)
            if holder is not None:
                state.responses.found(ask, identity, holder.name)
        request = TurnRequest(ask, identity, PATHS[surface], headers, state.clock(), forced)
        with state.conversations.visit(identity) as visit:
            try:
                await self._until_served(request, visit, reply)
            except RejectedError as rejected:
                await _answer(reply, request, rejected.answer)
            except LegFailedError as failure:
                if isinstance(failure.cause, RouterError):
                    raise failure.cause from failure
                await _answer(reply, request, failure.cause)
            except asyncio.CancelledError:
                state.metrics.gone.labels(visit.phase).inc()
                raise
            finally:
                if identity.final and identity.key is not None:
                    await self._end(identity.key)

    async def _end(self, key: Key) -> None:
        """The client said that this turn is its last. The answer is there, whatever becomes of the rest."""
        try:
            await self._state.conversations.close(key.tenant, key.conversation)
        except Exception:
            log.exception("conversations.not_closed")

    async def _until_served(self, request: TurnRequest, visit: Visit, reply: Reply) -> None:
        """Attempt, and again where a leg failed before anything went to the client: never with an engine that
        failed while there is another, and never with the same handle."""
        failed: set[str] = set()

        async def attempt() -> None:
            once = Attempt(self._state, self._prefill, self._decode, request, visit, reply)
            await once.run(failed, again=bool(failed))

        try:
            await attempt()
        except LegFailedError as failure:
            first = [failure]

            async def repeated() -> None:
                if first:  # made above: most turns need no second attempt, and should not pay for one
                    raise first.pop()
                await attempt()

            await self._retrying(request, reply, failed)(repeated)

    def _retrying(self, request: TurnRequest, reply: Reply, failed: set[str]) -> tenacity.AsyncRetrying:
        def note(retry: tenacity.RetryCallState) -> None:
            failure = retry.outcome.exception() if retry.outcome is not None else None
            assert isinstance(failure, LegFailedError)
            worker = failure.worker
            failed.add(worker.name)
            self._state.metrics.retries.labels(worker.role).inc()
            request.log("leg.retried", worker=worker.name, role=worker.role, cause=str(failure.cause))

        settings = self._state.settings
        return tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(settings.attempts),
            wait=tenacity.wait_random(0, settings.retry_pause),
            retry=tenacity.retry_if_exception(
                lambda error: isinstance(error, LegFailedError) and not reply.started
            ),
            before_sleep=note,
            reraise=True,
        )


async def _answer(reply: Reply, request: TurnRequest, answer: Answer) -> None:
    reply.on_first_byte(None)
    headers: list[Header] = [("content-type", answer.content_type), ("x-request-id", request.id)]
    if answer.retry_after is not None:
        headers.append(("retry-after", answer.retry_after))
    await reply.whole(answer.status, headers, answer.body)
