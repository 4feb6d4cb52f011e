"""Calls about leases to engines, and releases on their way there: in batches, sent in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from antiphon_server.protocol import LEASES_PATH, PROTOCOL, PROTOCOL_HEADER, LeaseReply, LeaseRequest
from antiphon_server.router.fleet.workers import Worker
from antiphon_server.router.metrics import Metrics
from antiphon_server.router.upstream.connection import UpstreamError
from antiphon_server.router.upstream.upstream import Timeouts, Upstream

log = logging.getLogger(__name__)

BATCH = 512
"""Leases a call names at most."""

GATHER = 0.02
"""Seconds between two calls to one engine: what is released meanwhile goes together. A call costs as much as
a leg, and at each turn there is something to release."""

_LARGEST_REPLY = 4 * 1024 * 1024
_TIMEOUTS = Timeouts(connect=5.0, first=15.0, idle=15.0)


class LeaseRefusedError(Exception):
    """An engine answered a lease request with an error."""


class LeaseCalls:
    """``POST /antiphon/leases``. ``headers``: the key towards engines."""

    def __init__(self, upstream: Upstream, headers: Sequence[tuple[str, str]] = ()) -> None:
        self._upstream = upstream
        self._headers = (
            (PROTOCOL_HEADER, str(PROTOCOL)),
            ("Content-Type", "application/json"),
            *headers,
        )

    async def post(self, worker: Worker, request: LeaseRequest) -> LeaseReply:
        """Ask once.

        Raises:
            UpstreamError: no answer.
            LeaseRefusedError: an answer that is none.
        """
        response = await self._upstream.send(
            worker.origin,
            "POST",
            LEASES_PATH,
            headers=(*self._headers, *getattr(worker, "headers", ())),
            body=msgspec.json.encode(request),
            timeouts=_TIMEOUTS,
            repeat=True,
        )
        try:
            body = await response.read(_LARGEST_REPLY)
        finally:
            response.close()
        if response.status != 200:
            raise LeaseRefusedError(f"{LEASES_PATH} answers {response.status}")
        try:
            return msgspec.json.decode(body, type=LeaseReply)
        except msgspec.DecodeError as error:
            raise LeaseRefusedError(f"{LEASES_PATH} answers something else: {error}") from error


_FAILURES = (UpstreamError, LeaseRefusedError)


class _Batch:
    """Leases, and legs whose leases are not known, that go in one breath. ``done``: True once the engine has
    answered, False if it never did."""

    __slots__ = ("done", "ids", "legs")

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.legs: list[str] = []
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def requests(self) -> list[LeaseRequest]:
        """In parts that engines take."""
        longest = max(len(self.ids), len(self.legs))
        return [
            LeaseRequest(release=self.ids[start : start + BATCH], legs=self.legs[start : start + BATCH])
            for start in range(0, longest, BATCH)
        ]


class Releases:
    """Releases on their way. To release an unknown lease is harmless, so one is sent again after a failure;
    one that keeps failing is left to the engine's own short lease. ``gather``: seconds between two calls."""

    def __init__(self, calls: LeaseCalls, metrics: Metrics, gather: float = GATHER) -> None:
        self._calls = calls
        self._gather = gather
        self._metrics = metrics
        self._waiting: dict[Worker, _Batch] = {}
        self._sending: dict[Worker, _Batch] = {}
        self._senders: dict[Worker, asyncio.Task[None]] = {}
        self._hurried: dict[Worker, asyncio.Event] = {}

    def add(self, worker: Worker, lease: str) -> asyncio.Future[bool]:
        """Release a lease, soon. The future is many leases' at once: shield it."""
        batch = self._next(worker)
        batch.ids.append(lease)
        return batch.done

    def add_leg(self, worker: Worker, leg: str) -> None:
        """Release what a leg keeps, soon."""
        self._next(worker).legs.append(leg)

    def pending(self, worker: Worker) -> asyncio.Future[bool] | None:
        """When all that was asked of an engine so far is answered; None if it is."""
        batch = self._waiting.get(worker) or self._sending.get(worker)
        return batch.done if batch is not None else None

    def hurry(self, worker: Worker) -> None:
        """Somebody waits for :meth:`pending`: send at once."""
        hurried = self._hurried.get(worker)
        if hurried is not None:
            hurried.set()

    async def flush(self) -> None:
        """Until all were sent, or given up."""
        while self._senders:
            for hurried in self._hurried.values():
                hurried.set()
            await asyncio.gather(*self._senders.values(), return_exceptions=True)
            await asyncio.sleep(0)

    def _next(self, worker: Worker) -> _Batch:
        """What goes next, and will."""
        batch = self._waiting.get(worker)
        if batch is None:
            batch = self._waiting[worker] = _Batch()
        if worker not in self._senders:
            self._senders[worker] = asyncio.create_task(self._send_waiting(worker))
        return batch

    async def _send_waiting(self, worker: Worker) -> None:
        batch = None
        hurried = self._hurried[worker] = asyncio.Event()
        try:
            await asyncio.sleep(0)  # what is released in the same breath goes in one request
            while (batch := self._waiting.pop(worker, None)) is not None:
                self._sending[worker] = batch
                sent = [await self._send(worker, request) for request in batch.requests()]
                _settle(batch, all(sent))
                del self._sending[worker]
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._gather):
                        await hurried.wait()
                hurried.clear()
        finally:
            self._sending.pop(worker, None)
            del self._senders[worker], self._hurried[worker]
            if batch is not None:
                _settle(batch, False)

    async def _send(self, worker: Worker, request: LeaseRequest) -> bool:
        leases, legs = len(request.release), len(request.legs)
        try:
            try:
                await self._calls.post(worker, request)
            except _FAILURES as failure:
                await self._send_again(worker, request, failure)
        except _FAILURES as error:
            self._metrics.leases.labels("failed").inc(leases + legs)
            log.warning("leases.release_failed", extra={"worker": worker.name, "error": str(error)})
            return False
        self._metrics.leases.labels("released").inc(leases)
        self._metrics.leases.labels("legs").inc(legs)
        return True

    async def _send_again(self, worker: Worker, request: LeaseRequest, failure: Exception) -> None:
        first = [failure]
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(_FAILURES),
            stop=stop_after_attempt(4),
            wait=wait_random_exponential(multiplier=0.2, max=3.0),
            reraise=True,
        ):
            with attempt:
                if first:  # made already: most releases need no second attempt
                    raise first.pop()
                await self._calls.post(worker, request)


def _settle(batch: _Batch, answered: bool) -> None:
    if not batch.done.done():
        batch.done.set_result(answered)
