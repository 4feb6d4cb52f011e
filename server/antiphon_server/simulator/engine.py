"""An engine without a model: schedules requests, moves KV and keeps the books. Knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from antiphon_server.protocol import (
    Handle,
    Info,
    LeaseLimits,
    LeaseReply,
    LeaseRequest,
    Match,
    seal_of,
)
from antiphon_server.simulator.answer import sample
from antiphon_server.simulator.blocks import BlockPool
from antiphon_server.simulator.counters import Counters
from antiphon_server.simulator.faults import Faults
from antiphon_server.simulator.handle import is_whole, write_handle
from antiphon_server.simulator.job import EngineDiedError, Job, KvLoadError, Output, Prefilled, Received
from antiphon_server.simulator.kv import BlockKv, cut, length, read, root
from antiphon_server.simulator.leases import Leases
from antiphon_server.simulator.sequence import Sequence as Tokens
from antiphon_server.simulator.settings import Settings
from antiphon_server.simulator.steps import Steps
from antiphon_server.simulator.tokens import END_TOKEN
from antiphon_server.simulator.transfer import (
    ExpiredError,
    Pull,
    SimulatedCluster,
    TransferError,
    cut_blocks,
    plan_decode,
    plan_prefill,
)

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(slots=True)
class SimulatedEngine:
    """One engine of a :class:`SimulatedCluster`; ``clock`` in seconds.

    Its own clock starts elsewhere than its neighbours', as on real machines: see :meth:`now`.
    """

    settings: Settings = field(default_factory=Settings)
    clock: Clock = time.monotonic
    cluster: SimulatedCluster = field(default_factory=SimulatedCluster)
    sleep: Sleep = asyncio.sleep
    requests: list[Received] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    faults: Faults = field(default_factory=Faults)
    engine_id: str = field(init=False)
    epoch: str = field(init=False)
    running: int = field(default=0, init=False)
    waiting: int = field(default=0, init=False)
    _offset: float = field(init=False)
    _pool: BlockPool = field(init=False)
    _leases: Leases = field(init=False)
    _life: asyncio.Event = field(init=False)
    _freed: asyncio.Event = field(init=False)
    _steps: Steps = field(init=False)

    def __post_init__(self) -> None:
        self._boot()

    def now(self) -> float:
        """Seconds on this engine's own clock, the one its deadlines are stamped with."""
        return self.clock() + self._offset

    @property
    def pinned_blocks(self) -> int:
        """Blocks kept for a finished request until somebody reads them or the lease ends."""
        return self._settled().blocks

    @property
    def pinned(self) -> list[str]:
        """Ids of the finished requests that are pinned, oldest first."""
        return self._settled().ids

    @property
    def used_blocks(self) -> int:
        """Blocks in use: pinned ones and those of running requests."""
        self._settled()
        return self._pool.used

    def forget(self) -> bool:
        """Empty the prefix cache; False, and nothing is done, while blocks are in use."""
        self._settled()
        return self._pool.forget()

    @property
    def expired(self) -> int:
        """Leases that ended unread since boot."""
        return self._settled().expired

    def info(self) -> Info:
        """What ``GET /antiphon/info`` answers."""
        own = self.settings
        return Info(
            protocol=1,
            engine_id=self.engine_id,
            epoch=self.epoch,
            role=own.role,
            model=own.model,
            vllm="0.32.0",
            nixl="1.5.1",
            block_size=own.block_size,
            kv_groups=["full_attention"],
            tensor_parallel=1,
            data_parallel=own.data_parallel,
            threshold=own.threshold,
            capacity=own.capacity * own.block_size,
            leases=LeaseLimits(decode=own.decode_lease, prefill=own.prefill_lease, longest=own.longest_lease),
            reuse=own.reuse,
            reuse_reason=None if own.reuse else "bidirectional_kv_xfer is off",
            prefix_caching=own.prefix_caching,
            names_legs=True,
        )

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Renew and release leases."""
        reply = self._leases.apply(request, self.now())
        self._freed.set()
        return reply

    def expire_leases(self) -> None:
        """End every lease now, as if its time were over."""
        self._leases.expire(float("inf"))
        self._freed.set()

    def restart(self) -> None:
        """Die and come back: new id and epoch, all KV gone, requests in flight lost."""
        self.halt()
        self._boot()

    def halt(self) -> None:
        """Lose all requests in flight, and leave the cluster until the next boot."""
        self.cluster.leave(self.engine_id)
        self._life.set()
        self._freed.set()

    def resume(self) -> None:
        """Boot after :meth:`halt`; nothing happens to an engine that lives."""
        if self._life.is_set():
            self._boot()

    def read_blocks(self, counts: Mapping[int, int]) -> list[BlockKv]:
        """What these blocks hold now, read from outside: so many tokens of each."""
        self._settled()
        return [
            read(self._pool[number].kv if self._pool.holds(number) else (), number, count)
            for number, count in counts.items()
        ]

    def notified(self, request_id: str) -> None:
        """A reader is done with a request's blocks."""
        self._leases.expire(self.now())
        if not self._leases.free(request_id):
            self.counters.late_notifications += 1
        self._freed.set()

    def refuse(self, handle: Mapping[str, Any] | None) -> None:
        """Free what prefill holds for a request that was turned down before it was scheduled."""
        if handle and handle.get("do_remote_prefill") and handle.get("remote_engine_id"):
            self.cluster.notify(handle)

    async def generate(self, job: Job) -> AsyncGenerator[Output]:
        """Run one sequence. Closing the generator aborts it: its blocks are freed, nothing is pinned.

        Raises:
            KvLoadError: KV did not arrive, with the policy "fail".
            EngineDiedError: the engine restarted meanwhile.
        """
        life = self._life
        reserve = len(job.prompt) + max(0, min(job.limit, len(job.script)) - 1)
        sequence = await self._admit(job, reserve, life)
        self.running += 1
        try:
            prefilled = await self._prefill(job, sequence, life)
            last = min(job.limit, len(job.script)) - 1
            for position, slot in enumerate(job.script[: last + 1]):
                if position:
                    await self._steps.token()
                    self._alive(life)
                    sequence.compute(len(sequence.tokens))
                token, logprob = sample(sequence.state, slot, position, job.nonce)
                if position < last:
                    sequence.append((token,))
                    yield Output(token, slot.part, logprob, prefilled.cached)
                    self._alive(life)
                    continue
                finish = "stop" if slot.token == END_TOKEN else "length"
                handle = self._finish(job, prefilled)
                yield Output(token, slot.part, logprob, prefilled.cached, finish, handle)
        except (asyncio.CancelledError, GeneratorExit):
            self.counters.aborted += 1
            raise
        finally:
            self.running -= 1
            sequence.release()
            self._freed.set()

    def _boot(self) -> None:
        own = self.settings
        self.engine_id, self.epoch = str(uuid4()), uuid4().hex
        self._offset = int.from_bytes(blake2b(self.epoch.encode(), digest_size=2).digest(), "big")
        self._pool = BlockPool(own.capacity, prefix_caching=own.prefix_caching)
        self._leases = Leases(self._pool, own.longest_lease)
        self._life, self._freed = asyncio.Event(), asyncio.Event()
        base = 1 / own.decode_rate if own.decode_rate else 0.0
        self._steps = Steps(base, own.prefill_rate, own.chunk, self.sleep)
        self.cluster.join(self)

    def _settled(self) -> Leases:
        self._leases.expire(self.now())
        return self._leases

    def _alive(self, life: asyncio.Event) -> None:
        if life.is_set():
            raise EngineDiedError("the engine died")

    async def _admit(self, job: Job, reserve: int, life: asyncio.Event) -> Tokens:
        """Take the blocks a request needs at most, once they are free."""
        own = self.settings
        size = own.block_size
        with self._queued():
            while True:
                self._alive(life)
                sequence = Tokens(
                    self._pool,
                    root=root(own.model),
                    block_size=size,
                    tokens=job.prompt,
                    salt=job.salt,
                    seed=own.hash_seed,
                )
                self._settled()
                # One token is always left to compute: its output is the first token of the answer.
                sequence.share(self._pool.lookup(sequence.keys[: (len(job.prompt) - 1) // size]))
                if -(-reserve // size) - len(sequence.blocks) <= self._pool.free:
                    sequence.reserve(reserve)
                    return sequence
                sequence.release()
                await self._room()

    @contextmanager
    def _queued(self) -> Iterator[None]:
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    async def _room(self) -> None:
        """Wait until blocks were freed, or the next lease ends."""
        self._freed.clear()
        deadline = self._leases.next_deadline
        until = None if deadline is None else max(0.0, deadline - self.now())
        freed = asyncio.ensure_future(self._freed.wait())
        waits: set[asyncio.Future[Any]] = {freed}
        if until is not None:
            waits.add(asyncio.ensure_future(self.sleep(until)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _prefill(self, job: Job, sequence: Tokens, life: asyncio.Event) -> Prefilled:
        """Bring the KV of the whole prompt together: local, pulled, computed."""
        own, local = self.settings, sequence.computed
        pull = self._plan(job, sequence)
        pulled = 0
        if pull.tokens:
            pulled, pull = await self._pull(job, sequence, pull, life)
        elif pull.readable and job.handle is not None and (own.reuse or job.handle.get("do_remote_prefill")):
            self.cluster.notify(job.handle)
        cached = sequence.computed
        computed = len(job.prompt) - cached
        await self._steps.prompt(computed)
        self._alive(life)
        sequence.compute(len(job.prompt))
        self.counters.prefilled(local=local, pulled=pulled, computed=computed, asked=job.handle is not None)
        return Prefilled(sequence, pull, local, pulled, cached)

    def _plan(self, job: Job, sequence: Tokens) -> Pull:
        handle, own, prompt = job.handle or {}, self.settings, len(job.prompt)
        if handle.get("do_remote_prefill"):
            seal = seal_of(handle) if own.antiphon and own.check else None
            if seal is not None and not is_whole(seal, sequence):
                return Pull(readable=True, match=Match.MISMATCH)
            return plan_decode(handle, prompt, sequence.computed)
        if handle.get("do_remote_decode"):
            return plan_prefill(own, handle, sequence.keys, prompt, sequence.computed)
        return Pull()

    async def _pull(self, job: Job, sequence: Tokens, pull: Pull, life: asyncio.Event) -> tuple[int, Pull]:
        """Read the other engine's blocks into the sequence's next ones; tokens taken, and the verdict."""
        own, handle = self.settings, dict(job.handle or {})
        if not pull.readable:
            raise KvLoadError("kv_transfer_params ask for remote KV but do not say where it is")
        reuse = not handle.get("do_remote_prefill")
        if reuse and not own.reuse:
            await self._hang(life)
        size, local = own.block_size, sequence.computed
        total = local + pull.tokens
        # The transfer pairs blocks from the end: right only when both lists end with the same block.
        count = -(-total // size) - local // size
        try:
            ids = cut_blocks(handle, pull.match, total // size)[-count:]
            counts = {number: min(size, pull.tokens - index * size) for index, number in enumerate(ids)}
            self.cluster.deadline_check(handle)
            await self.sleep(pull.tokens / own.transfer_rate if own.transfer_rate else 0)
            self._alive(life)
            contents = self.cluster.read(handle, counts)
            if own.antiphon:
                self.cluster.deadline_check(handle)
        except asyncio.CancelledError:
            self.counters.aborted_pulls += 1
            raise
        except TransferError as error:
            self.counters.failed_transfers += not isinstance(error, ExpiredError)
            self.counters.declined += isinstance(error, ExpiredError)
            if own.kv_load_failure_policy == "fail":
                raise KvLoadError(str(error)) from error
            if reuse and isinstance(error, ExpiredError) and not own.antiphon:
                # Stock vLLM asks for the same remote load again, for ever.
                await self._hang(life)
            return 0, Pull(readable=True, match=Match.FAILED)
        self.cluster.notify(handle)
        if total >= len(job.prompt) and contents:
            contents[-1] = cut(contents[-1], length(contents[-1]) - 1)
        sequence.load(contents)
        self.counters.transferred(pull.tokens * own.bytes_per_token)
        return sequence.computed - local, pull

    async def _hang(self, life: asyncio.Event) -> None:
        await life.wait()
        self._alive(life)

    def _finish(self, job: Job, prefilled: Prefilled) -> Handle | None:
        """Pin the KV for whoever reads it next, and say where it is."""
        own, asked, sequence = self.settings, job.handle, prefilled.sequence
        if not asked:
            return None
        is_prefill = bool(asked.get("do_remote_decode"))
        if not is_prefill and not own.reuse:
            return None
        sequence.trim()
        deadline = self.now() + (own.prefill_lease if is_prefill else own.decode_lease)
        handle = write_handle(
            own, self.engine_id, job.request_id, prefilled, None if is_prefill else deadline
        )
        self._leases.grant(job.request_id, sequence.blocks, deadline)
        sequence.blocks = []
        return handle
