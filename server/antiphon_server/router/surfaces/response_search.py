"""Where a stored response is, when this router has not seen it made: after a restart, or through another
router."""

from __future__ import annotations

import asyncio

from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.state import State
from antiphon_server.router.upstream.connection import UpstreamError


async def holder_of(state: State, response_id: str) -> Worker | None:
    """The decode engine that has it: from memory, or by asking all; None if none has it."""
    stored = state.responses.find(response_id)
    known = state.workers.find(stored.worker) if stored is not None else None
    if known is not None:
        return known
    # Ranks of one engine share its memory of responses.
    engines = list({worker.url: worker for worker in state.workers.decode if worker.healthy}.values())
    if len(engines) <= 1:
        return engines[0] if engines else None
    answers = await asyncio.gather(*(_has(state, worker, response_id) for worker in engines))
    return next((worker for worker, has in zip(engines, answers, strict=True) if has), None)


async def _has(state: State, worker: Worker, response_id: str) -> bool:
    try:
        response = await state.upstream.send(
            worker.origin,
            "GET",
            f"/v1/responses/{response_id}",
            headers=(*worker.headers, *state.engine_headers),
            repeat=True,
        )
    except UpstreamError:
        state.workers.suspect(worker)
        return False
    try:
        await response.read(state.settings.max_reply)
    except UpstreamError:
        return False
    finally:
        response.close()
    return response.status == 200
