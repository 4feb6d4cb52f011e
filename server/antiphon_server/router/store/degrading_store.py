"""A shared store that fails without failing turns: local memory steps in until it is back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from prometheus_client import Gauge
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from antiphon_server.router.gate.identity import Key
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.store.memory_store import MemoryStore
from antiphon_server.router.store.redis_connection import StoreError
from antiphon_server.router.store.redis_store import BEAT, RedisStore

log = logging.getLogger(__name__)

_MOST_OWED = 10_000
_AT_ONCE = 16


class DegradingStore:
    """``shared`` while it answers, else ``local``. After a failure nobody waits for ``shared`` until it has
    answered in the background; then what was kept locally moves there.

    ``dropped``: told of frontiers that fall out in the background, to release them. ``gauge``: 1 while
    degraded.

    A frontier of ``shared`` is never given out while degraded: another router may have it by then. So is none
    that ``shared`` may have got although its answer was lost. Both end with their leases, at worst.
    """

    def __init__(
        self,
        shared: RedisStore,
        local: MemoryStore,
        *,
        dropped: Callable[[Frontier], object],
        gauge: Gauge,
        beat: float = BEAT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = shared
        self._local = local
        self._dropped = dropped
        self._gauge = gauge
        self._beat = beat
        self._clock = clock
        self._degraded = False
        self._failed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._fences: dict[str, str] = {}
        self._closed: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._removed: OrderedDict[Key, Frontier] = OrderedDict()

    at_hand = False

    @property
    def degraded(self) -> bool:
        return self._degraded

    async def start(self) -> None:
        try:
            await self._shared.start()
        except StoreError as error:
            self._fail(error)
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        await self._end_watching()
        await self._shared.stop()

    async def take(self, key: Key) -> Frontier | None:
        if not self._degraded:
            try:
                return await self._shared.take(key)
            except StoreError as error:
                self._fail(error)
        return await self._local.take(key)

    async def record(self, frontier: Frontier) -> list[Frontier]:
        if not self._degraded:
            try:
                return await self._shared.record(frontier)
            except StoreError as error:
                self._fail(error)
                if not error.unsent:
                    return []
        return await self._local.record(frontier)

    async def renewed(self, old: Frontier, new: Frontier) -> bool:
        if not self._degraded:
            try:
                return await self._shared.renewed(old, new)
            except StoreError as error:
                self._fail(error)
        return await self._local.renewed(old, new) or await self._shared.books.renewed(old, new)

    async def remove(self, frontiers: Iterable[Frontier]) -> list[Frontier]:
        asked = list(frontiers)
        if not self._degraded:
            try:
                return await self._shared.remove(asked)
            except StoreError as error:
                self._fail(error)
        self._owe_removal(await self._shared.books.remove(asked))
        return await self._local.remove(asked)

    async def close(self, tenant: str, conversation: str) -> list[Frontier]:
        if not self._degraded:
            try:
                return await self._shared.close(tenant, conversation)
            except StoreError as error:
                self._fail(error)
        await self._shared.books.close(tenant, conversation)
        self._closed[tenant, conversation] = self._clock()
        if len(self._closed) > _MOST_OWED:
            self._closed.popitem(last=False)
        return await self._local.close(tenant, conversation)

    async def fence(self, worker: str, epoch: str) -> None:
        await self._local.fence(worker, epoch)
        if not self._degraded:
            try:
                await self._shared.fence(worker, epoch)
            except StoreError as error:
                self._fail(error)
            else:
                return
        await self._shared.books.fence(worker, epoch)
        self._fences[worker] = epoch

    async def leave(self) -> list[Frontier]:
        await self._end_watching()
        left: list[Frontier] = []
        if not self._degraded:
            try:
                left = await self._shared.leave()
            except StoreError as error:
                self._fail(error)
        return left + await self._local.leave()

    async def of(self, tenant: str, conversation: str) -> list[Frontier]:
        if not self._degraded:
            try:
                return await self._shared.of(tenant, conversation)
            except StoreError as error:
                self._fail(error)
        return await self._local.of(tenant, conversation) + await self._shared.books.of(tenant, conversation)

    async def held(self) -> list[Frontier]:
        if not self._degraded:
            try:
                return await self._shared.held()
            except StoreError as error:
                self._fail(error)
        return await self._shared.books.held() + await self._local.held()

    async def tokens(self, worker: str) -> int:
        if not self._degraded:
            try:
                return await self._shared.tokens(worker)
            except StoreError as error:
                self._fail(error)
        return await self._shared.books.tokens(worker) + await self._local.tokens(worker)

    def _fail(self, error: StoreError) -> None:
        if self._degraded:
            return
        self._degraded = True
        self._gauge.set(1)
        self._failed.set()
        log.warning(
            "store.degraded",
            extra={
                "store": self._shared.address,
                "cause": str(error),
                "meaning": "conversations go on only on the router that served them last, until it is back",
            },
        )

    def _owe_removal(self, frontiers: list[Frontier]) -> None:
        for frontier in frontiers:
            self._removed[frontier.key] = frontier
        while len(self._removed) > _MOST_OWED:
            self._removed.popitem(last=False)

    async def _watch(self) -> None:
        """Give signs of life; after a failure, try until the store is back."""
        while True:
            try:
                async with asyncio.timeout(self._beat):
                    await self._failed.wait()
            except TimeoutError:
                pass
            try:
                if self._degraded:
                    await self._come_back()
                else:
                    await self._shared.beat()
            except StoreError as error:
                self._fail(error)
            except Exception:
                log.exception("store.round_failed")

    async def _come_back(self) -> None:
        self._failed.clear()
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(StoreError), wait=wait_random_exponential(multiplier=0.05, max=5.0)
        ):
            with attempt:
                await self._shared.beat()
                await self._settle()
                moved = await self._move()
        log.info("store.restored", extra={"store": self._shared.address, "moved": moved})

    async def _settle(self) -> None:
        """Do what was asked for meanwhile, and extend what was kept alive."""
        while self._fences:
            worker, epoch = next(iter(self._fences.items()))
            await self._shared.fence(worker, epoch)
            if self._fences.get(worker) == epoch:
                del self._fences[worker]
        while self._closed:
            (tenant, conversation), closed = next(iter(self._closed.items()))
            self._drop(await self._shared.close(tenant, conversation, ago=self._clock() - closed))
            self._closed.pop((tenant, conversation), None)
        while self._removed:
            frontier = next(iter(self._removed.values()))
            self._drop(await self._shared.remove([frontier]))
            self._removed.pop(frontier.key, None)
        kept = await self._shared.books.held()
        for start in range(0, len(kept), _AT_ONCE):
            await asyncio.gather(*(self._shared.renewed(f, f) for f in kept[start : start + _AT_ONCE]))

    async def _move(self) -> int:
        """Local frontiers to the shared store. Turns use the local one until it is empty; between its last
        look and the switch nothing else runs."""
        moved = 0
        while held := await self._local.held():
            for resting in held:
                for frontier in await self._local.remove([resting]):  # none if a turn has it by now
                    try:
                        self._drop(await self._shared.record(frontier))
                    except StoreError as error:
                        if error.unsent:
                            await self._local.record(frontier)
                        raise
                    moved += 1
        self._degraded = False
        self._gauge.set(0)
        return moved

    def _drop(self, frontiers: list[Frontier]) -> None:
        for frontier in frontiers:
            self._dropped(frontier)

    async def _end_watching(self) -> None:
        watching, self._watching = self._watching, None
        while watching is not None and not watching.done():  # a client library may swallow a cancellation
            watching.cancel()
            await asyncio.wait({watching}, timeout=0.2)
