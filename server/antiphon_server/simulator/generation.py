"""One generation as an HTTP reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from antiphon_server.protocol import LEG_HEADER, PROMPT_HEADER, Prompt
from antiphon_server.simulator.ask import Ask
from antiphon_server.simulator.engine import SimulatedEngine
from antiphon_server.simulator.faults import drop_connection
from antiphon_server.simulator.job import EngineDiedError, Job, KvLoadError, Output
from antiphon_server.simulator.reply import Reply, cached_tokens, handle_of


def json_reply(content: Any, status: int = 200) -> Response:
    """A reply of JSON."""
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


class Generation(Response):
    """Runs the request when it is sent, and aborts it when the client leaves. ``leg``: the client asked for
    what our plug-in adds, and named its request so; None: it did not ask."""

    def __init__(
        self, engine: SimulatedEngine, ask: Ask, reply: Reply, request_id: str, *, leg: str | None
    ) -> None:
        super().__init__()
        self._engine = engine
        self._ask = ask
        self._request_id = request_id
        self._reply = reply
        self._leg = leg

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = self._stream(send) if self._ask.stream else self._whole(scope, receive, send)
        try:
            await _until_gone(receive, work)
        except EngineDiedError as error:
            await drop_connection(error)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers: list[list[Output]] = [[] for _ in range(self._ask.choices)]
        try:
            async with aclosing(self._outputs()) as outputs:
                async for index, output in outputs:
                    answers[index].append(output)
        except KvLoadError:
            error = self._reply.refused(500, "Internal server error", "InternalServerError", None)
            await json_reply(error, 500)(scope, receive, send)
            return
        response = json_reply(self._reply.whole(answers))
        for name, value in (*self._named(), *self._prompt(answers[0][0])):
            response.headers[name.decode()] = value.decode()
        await response(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        head = [(b"content-type", b"text/event-stream; charset=utf-8"), *self._named()]
        begun = False

        async def start(more: list[tuple[bytes, bytes]]) -> None:
            nonlocal begun
            if not begun:
                begun = True
                await send({"type": "http.response.start", "status": 200, "headers": [*head, *more]})

        async def tell(events: list[bytes]) -> None:
            for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})

        reply = self._reply
        answers: list[list[Output]] = [[] for _ in range(self._ask.choices)]
        if reply.early:
            await start([])
            await tell(reply.opening())
        try:
            async with aclosing(self._outputs()) as outputs:
                async for index, output in outputs:
                    if not begun:
                        await start(self._prompt(output))
                        await tell(reply.opening())
                    answers[index].append(output)
                    await tell(reply.events(index, output))
        except KvLoadError as error:
            failed = reply.failed()
            if failed is None:
                await drop_connection(error)
                return
            await start([])
            await tell(failed)
        else:
            handle = handle_of(answers) if self._leg is not None else None
            await tell(reply.closing(answers, handle))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _named(self) -> list[tuple[bytes, bytes]]:
        """The header that says which request is answered."""
        return [(LEG_HEADER.lower().encode(), self._leg.encode("latin-1"))] if self._leg else []

    def _prompt(self, first: Output) -> list[tuple[bytes, bytes]]:
        """The header that tells of the prompt, as our plug-in adds it at the first output."""
        if self._leg is None:
            return []
        prompt = Prompt(len(self._ask.prompt), cached_tokens(self._ask, first))
        return [(PROMPT_HEADER.lower().encode(), prompt.header().encode())]

    async def _outputs(self) -> AsyncGenerator[tuple[int, Output]]:
        ask = self._ask
        for index in range(ask.choices):
            job = Job(
                request_id=f"{self._request_id}-{uuid4().hex[:8]}",
                prompt=ask.prompt,
                script=ask.script,
                limit=ask.limit,
                salt=ask.salt,
                nonce=ask.nonce + index,
                handle=ask.handle,
            )
            async with aclosing(self._engine.generate(job)) as outputs:
                async for output in outputs:
                    yield index, output


async def _until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``; cancel it when the client leaves."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = [task for task in (working, gone) if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    if not working.cancelled():
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
