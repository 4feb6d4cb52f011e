"""Who is served now, who waits, who is told to come back: fair between tenants, and nothing ever leaks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon_server.router.errors import DrainingError, OverloadedError, RouterError
from antiphon_server.router.gate.admission import Admission, Capacity
from antiphon_server.router.gate.keys import Limits
from antiphon_server.router.gate.pace import LATEST, Pace
from antiphon_server.router.gate.tenants import Tenant
from antiphon_server.router.metrics import Metrics

Message = dict[str, Any]
A, B, C = Tenant("a"), Tenant("b"), Tenant("c")


@dataclass
class Ward:
    """An admission and the turns that ask it."""

    admission: Admission
    metrics: Metrics
    inside: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    ends: dict[asyncio.Task[None], asyncio.Event] = field(default_factory=dict)
    now: float = 0.0

    def arrive(self, tenant: Tenant) -> asyncio.Task[None]:
        end = asyncio.Event()

        async def turn() -> None:
            async with self.admission.admit(tenant):
                self.inside.append(tenant.name)
                self.order.append(tenant.name)
                try:
                    await end.wait()
                finally:
                    self.inside.remove(tenant.name)

        task = asyncio.create_task(turn())
        self.tasks.append(task)
        self.ends[task] = end
        return task

    async def settle(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    async def finish(self, task: asyncio.Task[None]) -> None:
        self.ends[task].set()
        await self.settle()

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def nothing_left(self) -> bool:
        admission = self.admission
        return (
            not self.inside
            and admission.in_flight == admission.waiting == 0
            and not admission._running
            and not admission._lines
            and self.value("antiphon_turns_in_flight") == self.value("antiphon_queue_depth") == 0
        )


def ward(
    turns: int = 1, queue: int = 10, patience: float = 60.0, tenant_turns: int = 0, by_tenant: bool = False
) -> Ward:
    metrics = Metrics()
    capacity = Capacity(lambda: turns, queue, patience, tenant_turns)
    made: list[Ward] = []
    admission = Admission(capacity, metrics, clock=lambda: made[0].now, by_tenant=by_tenant)
    made.append(Ward(admission, metrics))
    return made[0]


async def refusal(task: asyncio.Task[None]) -> RouterError:
    with pytest.raises(RouterError) as refused:
        await asyncio.wait_for(task, 5)
    return refused.value


async def gone(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_too_many_waits_and_the_queue_is_bounded() -> None:
    w = ward(turns=1, queue=1)
    first, second, third = (w.arrive(A) for _ in range(3))
    await w.settle()
    assert (w.inside, w.admission.waiting) == (["a"], 1)
    assert isinstance(await refusal(third), OverloadedError)
    await w.finish(first)
    assert w.inside == ["a"]
    await w.finish(second)
    assert w.nothing_left()
    assert w.value("antiphon_turns_admitted_total") == 2
    assert w.value("antiphon_refused_total", cause="full") == 1


async def test_tenants_take_turns_however_many_wait() -> None:
    w = ward(turns=1)
    tasks = [w.arrive(tenant) for tenant in (A, A, A, A, B, B, C)]
    await w.settle()
    while not all(task.done() for task in tasks):
        running = [task for task in tasks if not task.done() and not w.ends[task].is_set()]
        for task in running:
            w.ends[task].set()
            await w.settle()
    assert w.order == ["a", "a", "b", "c", "a", "b", "a"]


async def test_full_queue_drops_the_last_of_the_longest_line() -> None:
    """One tenant cannot keep the others out by filling the queue."""
    w = ward(turns=1, queue=3)
    tasks = [w.arrive(A) for _ in range(4)]
    await w.settle()
    other = w.arrive(B)
    await w.settle()
    assert isinstance(await refusal(tasks[3]), OverloadedError)
    another = w.arrive(A)
    await w.settle()
    assert isinstance(await refusal(another), OverloadedError)
    await w.finish(tasks[0])
    await w.finish(tasks[1])
    assert w.inside == ["b"]
    for task in (other, tasks[2]):
        await w.finish(task)
    assert w.nothing_left()


async def test_tenant_at_its_own_limit_waits_while_others_pass() -> None:
    w = ward(turns=4, tenant_turns=1)
    favoured = Tenant("f", Limits(concurrency=2))
    tasks = [w.arrive(tenant) for tenant in (A, A, favoured, favoured, favoured, B)]
    await w.settle()
    assert sorted(w.inside) == ["a", "b", "f", "f"]
    assert w.admission.waiting == 2
    await w.finish(tasks[5])
    assert sorted(w.inside) == ["a", "f", "f"]
    await w.finish(tasks[0])
    assert sorted(w.inside) == ["a", "f", "f"]
    for task in tasks[1:5]:
        await w.finish(task)
    assert w.nothing_left()


async def test_wait_ends_with_the_queue_timeout() -> None:
    w = ward(turns=1, patience=0.0)
    first, second = w.arrive(A), w.arrive(B)
    assert isinstance(await refusal(second), OverloadedError)
    assert w.value("antiphon_refused_total", cause="timeout") == 1
    await w.finish(first)
    assert w.nothing_left()


async def test_client_that_leaves_the_queue_is_forgotten() -> None:
    w = ward(turns=1)
    first, second, third = (w.arrive(A) for _ in range(3))
    await w.settle()
    await gone(second)
    assert w.admission.waiting == 1
    await w.finish(first)
    assert w.inside == ["a"]
    await w.finish(third)
    assert w.nothing_left()


async def test_client_that_leaves_as_it_is_called_gives_its_place_to_the_next() -> None:
    w = ward(turns=1)
    first, second, third = w.arrive(A), w.arrive(B), w.arrive(C)
    await w.settle()
    w.ends[first].set()
    while w.admission.waiting == 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert w.inside == []  # the second has been called and does not know yet
    await gone(second)
    await w.settle()
    assert w.inside == ["c"]
    await w.finish(third)
    assert w.nothing_left()


async def test_drain_sends_away_who_waits_and_lets_the_others_finish() -> None:
    w = ward(turns=1)
    first, second = w.arrive(A), w.arrive(B)
    await w.settle()
    w.admission.drain()
    third = w.arrive(C)
    for task in (second, third):
        assert isinstance(await refusal(task), DrainingError)
    assert w.inside == ["a"]
    await w.finish(first)
    assert w.nothing_left()
    assert w.value("antiphon_refused_total", cause="draining") == 2


async def test_more_room_lets_in_who_waits() -> None:
    w = ward(turns=1)
    tasks = [w.arrive(A) for _ in range(3)]
    await w.settle()
    w.admission.resize(Capacity(lambda: 3, 10, 60.0))
    await w.settle()
    assert len(w.inside) == 3
    for task in tasks:
        await w.finish(task)
    assert w.nothing_left()


def retry_after(error: RouterError) -> int:
    return int(dict(error.headers)["retry-after"])


async def test_retry_after_follows_the_measured_pace() -> None:
    w = ward(turns=2, queue=1)
    for _ in range(3):
        task = w.arrive(A)
        await w.settle()
        w.now += 8.0
        await w.finish(task)
    tasks = [w.arrive(tenant) for tenant in (A, A, B)]
    await w.settle()
    assert retry_after(await refusal(w.arrive(C))) == 8  # two more turns of 8 s each, two at a time
    for task in tasks:
        await w.finish(task)


async def test_retry_after_of_a_tenants_own_limit_counts_its_own_turns_only() -> None:
    w = ward(turns=10, queue=0, tenant_turns=1)
    task = w.arrive(A)
    await w.settle()
    w.now += 5.0
    await w.finish(task)
    tasks = [w.arrive(A), w.arrive(B)]
    await w.settle()
    refused = await refusal(w.arrive(A))
    assert "its limit" in refused.message
    assert retry_after(refused) == 5
    assert w.value("antiphon_refused_total", cause="tenant") == 1
    for task in tasks:
        await w.finish(task)


def test_pace_is_bounded_and_cautious_while_nothing_is_known() -> None:
    pace = Pace()
    assert pace.wait(1, 1) == LATEST
    pace.finished(0.001)
    assert pace.wait(1, 100) == 1.0
    for _ in range(1000):
        pace.finished(1000.0)
    assert pace.wait(1, 1) == LATEST


async def test_turns_are_labelled_by_tenant_only_where_named() -> None:
    w = ward(turns=3, by_tenant=True)
    tasks = [w.arrive(tenant) for tenant in (Tenant("acme", named=True), A, B)]
    await w.settle()
    assert w.value("antiphon_tenant_turns_in_flight", tenant="acme") == 1
    assert w.value("antiphon_tenant_turns_in_flight", tenant="") == 2
    for task in tasks:
        await w.finish(task)
    assert w.value("antiphon_tenant_turns_in_flight", tenant="") == 0


TENANTS = [A, B, Tenant("limited", Limits(concurrency=1))]
STEP = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 2)),
    st.tuples(st.just("finish"), st.integers(0, 30)),
    st.tuples(st.just("leave"), st.integers(0, 30)),
    st.tuples(st.just("pause"), st.just(0)),
    st.tuples(st.just("settle"), st.just(0)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(STEP, max_size=60),
    st.integers(1, 3),
    st.integers(0, 4),
    st.sampled_from([0.0, 60.0]),
    st.booleans(),
)
def test_no_interleaving_leaks_a_turn_or_holds_one_up(
    steps: list[tuple[str, int]], turns: int, queue: int, patience: float, drained: bool
) -> None:
    async def run() -> None:
        w = ward(turns=turns, queue=queue, patience=patience)
        for step, index in steps:
            if step == "arrive":
                w.arrive(TENANTS[index])
            elif step == "pause":
                await asyncio.sleep(0)
            elif step == "settle":
                await w.settle()
                right(w)
            elif index < len(w.tasks):
                task = w.tasks[index]
                w.ends[task].set() if step == "finish" else task.cancel()
            assert w.admission.in_flight <= turns
            assert w.admission.waiting <= queue
        if drained:
            w.admission.drain()
        for end in w.ends.values():
            end.set()
        await asyncio.wait_for(asyncio.gather(*w.tasks, return_exceptions=True), 5)
        for task in w.tasks:
            assert task.cancelled() or isinstance(task.exception(), RouterError | None)
        assert w.nothing_left()

    def right(w: Ward) -> None:
        """What is counted is there; nobody waits for whom there is room."""
        admission = w.admission
        assert admission.in_flight == len(w.inside)
        assert admission.waiting == sum(map(len, admission._lines.values()))
        assert all(admission._running[name] == w.inside.count(name) for name in admission._running)
        assert w.inside.count("limited") <= 1
        if admission.in_flight < turns:
            assert set(admission._lines) <= {"limited"}
            assert not admission._lines or "limited" in w.inside

    asyncio.run(run())


async def test_overload_is_refused_and_leaves_nothing_behind(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 100.0}, router={"max_turns": 2, "queue": 2})
    body = {"model": "simulated", "messages": opening, "max_tokens": 30}
    replies = await asyncio.gather(*(rig.client.post("/v1/chat/completions", json=body) for _ in range(10)))
    statuses = sorted(reply.status_code for reply in replies)
    assert statuses == [200] * 4 + [429] * 6
    for reply in replies:
        if reply.status_code == 429:
            assert 1 <= int(reply.headers["retry-after"]) <= 60
            assert reply.json()["error"]["type"] == "rate_limit_error"
    admission = rig.state.admission
    await settled(lambda: admission.in_flight == admission.waiting == 0)
    assert rig.count("antiphon_turns_admitted_total") == 4
    assert rig.count("antiphon_refused_total", cause="full") == 6
    assert rig.count("antiphon_turns_in_flight") == rig.count("antiphon_queue_depth") == 0
    assert all(worker.in_flight == 0 for worker in rig.state.workers)
    await rig.ask(opening)


@pytest.mark.parametrize("padding", [0, 500_000])
async def test_client_that_leaves_while_it_waits_reaches_no_engine(
    start: Any, settled: Any, opening: list[Message], padding: int
) -> None:
    rig = await start(decode={"decode_rate": 20.0}, router={"max_turns": 1})
    body = {"model": "simulated", "messages": opening, "max_tokens": 200}
    waiting = body | {"padding": "x" * padding}
    first = asyncio.create_task(rig.client.post("/v1/chat/completions", json=body))
    await settled(lambda: rig.decode[0].running)
    second = asyncio.create_task(rig.client.post("/v1/chat/completions", json=waiting))
    await settled(lambda: rig.state.admission.waiting == 1)
    for task in (second, first):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await settled(lambda: rig.state.admission.in_flight == rig.state.admission.waiting == 0)
    assert len(rig.legs(rig.prefill[0])) == 1
    assert rig.count("antiphon_clients_gone_total", phase="queue") == 1


async def test_long_body_that_waited_is_served_whole(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 200.0}, router={"max_turns": 1})
    first = asyncio.create_task(rig.ask(opening, max_tokens=40))
    await settled(lambda: rig.decode[0].running)
    second = asyncio.create_task(rig.ask(opening, metadata={"padding": "x" * 3_000_000}))
    await settled(lambda: rig.state.admission.waiting == 1)
    await first
    await second


async def test_draining_refuses_new_turns_and_finishes_those_in_flight(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 100.0}, router={"max_turns": 1})
    first = asyncio.create_task(rig.ask(opening, max_tokens=40))
    await settled(lambda: rig.decode[0].running)
    waiting = asyncio.create_task(rig.ask(opening, check=False))
    await settled(lambda: rig.state.admission.waiting == 1)
    rig.state.begin_drain()
    for refused in (await waiting, await rig.ask(opening, check=False)):
        assert refused.status == 503
        assert refused.headers["retry-after"]
        assert refused.headers["connection"] == "close"
    ready = await rig.client.get("/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    assert (await first).status == 200


async def test_what_engines_compute_besides_turns_is_admitted_too(
    start: Any, settled: Any, opening: list[Message]
) -> None:
    rig = await start(decode={"decode_rate": 20.0}, router={"max_turns": 1, "queue": 0})
    body = {"model": "simulated", "messages": opening, "max_tokens": 200}
    turn = asyncio.create_task(rig.client.post("/v1/chat/completions", json=body))
    await settled(lambda: rig.decode[0].running)
    refused = await rig.client.post("/tokenize", json={"model": "simulated", "prompt": "a"})
    assert (refused.status_code, "retry-after" in refused.headers) == (429, True)
    assert (await rig.client.get("/v1/models")).status_code == 200
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    await settled(lambda: rig.state.admission.in_flight == 0)
    served = await rig.client.post("/tokenize", json={"model": "simulated", "prompt": "a"})
    assert served.status_code == 200
