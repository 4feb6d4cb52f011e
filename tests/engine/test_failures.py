"""Engines die and clients leave in every phase of a turn, on real engines.

A phase is not met by luck: an engine is held still (SIGSTOP) once the turn is in it. What a client gets is
the exact answer or an error that says so, soon; afterwards everything is exact, and nothing stays pinned.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from rig import counters, legs
from rig.answers import Answer, Messages, assert_same, chat, client_of
from rig.mortal import LEASE_S, Engine, Mortals, Router, mortals, router
from rig.pending import FailedError, Pending
from rig.scenes import FIRST, NEXT, system, user

pytestmark = pytest.mark.engine

LONG = "Read this, too: " + "a thing and another thing; " * 110
"""About 3,000 tokens: engines compute on it for a second or more."""
STORY = 1500
"""Tokens of an answer that no test waits for."""
BYSTANDER = "Something else altogether: how are you?"


class References:
    """Full recomputation by plain requests under a fresh salt; once for each prompt."""

    def __init__(self, fleet: Mortals) -> None:
        self._fleet = fleet
        self._known: dict[str, Answer] = {}

    def of(self, messages: Messages, tokens: int) -> Answer:
        asked = json.dumps([list(messages), tokens])
        if asked not in self._known:
            engine = next(engine for engine in reversed(self._fleet.decode) if engine.runs)
            with client_of(engine.url) as client:
                self._known[asked] = chat(client, messages, salt=uuid.uuid4().hex, tokens=tokens)
        return self._known[asked]


class Talk:
    """One conversation through one router. The first engine of each role serves it, as long as it lives."""

    def __init__(self, fleet: Mortals, router: Router, references: References) -> None:
        self.id = self.salt = uuid.uuid4().hex
        self.router = router
        self.messages: list[Any] = list(FIRST)
        self._fleet = fleet
        self._references = references
        self._tokens = 0
        self._sent: list[Pending] = []

    def send(self, text: str | None = None, *, tokens: int = 16, stream: bool = False) -> Pending:
        """The next turn, of which nothing is read yet. ``text`` None: the conversation's first."""
        self.messages += [] if text is None else [user(text)]
        self._tokens = tokens
        ids = {"conversation": self.id, "salt": self.salt}
        self._sent.append(Pending(self.router.url, self.messages, tokens=tokens, stream=stream, **ids))
        return self._sent[-1]

    def take(self, pending: Pending) -> Answer:
        """The turn's answer, which is exact."""
        answer = pending.answer()
        assert_same(answer, self.expected(self._tokens), f"after {answer.reuse}")
        self.messages.append(answer.message)
        return answer

    def turn(self, text: str, **more: Any) -> Answer:
        return self.take(self.send(text, **more))

    def open(self) -> Answer:
        """The first turn: an answer long enough that prefill has something to pull in the next one."""
        with self.router.only(self._fleet.prefill[0], self._fleet.decode[0]):
            return self.take(self.send(tokens=40))

    def close(self) -> None:
        """End the conversation, and what a failed test may have left in flight."""
        for pending in self._sent:
            pending.leave()
        self.router.close(self.id)

    def expected(self, tokens: int) -> Answer:
        """The right answer to what was asked last, or its first ``tokens``."""
        return self._references.of(self.messages, tokens)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortals]:
    with mortals(tmp_path_factory.mktemp("mortals")) as running:
        yield running


@pytest.fixture(scope="module")
def references(fleet: Mortals) -> References:
    return References(fleet)


Begin = Callable[[Router], Talk]
Special = Callable[..., Router]


@pytest.fixture
def special(fleet: Mortals, tmp_path: Path) -> Iterator[Special]:
    """Another router over the same engines, with settings of its own."""
    with ExitStack() as stack:
        yield lambda path="reuse", **env: stack.enter_context(
            router(fleet.engines, path, tmp_path / "router.log", env)
        )


@pytest.fixture
def begin(fleet: Mortals, references: References, special: Special) -> Iterator[Begin]:
    """Conversations of a test. Afterwards the dead are alive again, and nothing is left of the test."""
    talks: list[Talk] = []

    def begin(router: Router) -> Talk:
        talks.append(Talk(fleet, router, references))
        return talks[-1]

    yield begin
    died = {name: end for name, end in fleet.failures.items() if name not in fleet.ended_by_ucx}
    for engine in fleet.engines:
        if not engine.runs:
            engine.start()
    for talk in talks:
        talk.close()
    for engine in fleet.engines:
        engine.await_up()
    routers = [fleet.reuses, fleet.appends, *(talk.router for talk in talks)]
    for one in {id(each): each for each in routers}.values():  # the next test may use another one
        found = counters.eventually(lambda: health(one), all)  # noqa: B023
        assert all(found), f"engines that run and are not found again: {found}"
        idle = counters.eventually(lambda: busy(one), lambda now: not any(now.values()))  # noqa: B023
        assert not any(idle.values()), f"in flight, and nobody is there: {idle}"
        assert one.frontiers() == 0
    left = counters.eventually(lambda: pins(fleet), lambda now: not any(now.values()), LEASE_S + 10)
    assert not any(left.values()), f"still pinned: {left}"
    assert not died, f"died, and nobody had killed them: {died}"


def health(router: Router) -> list[bool]:
    return [worker["healthy"] for worker in router.workers().values()]


def busy(router: Router) -> dict[str, int]:
    legs = {url: worker["in_flight"] for url, worker in router.workers().items()}
    return {**legs, "turns": router.turns_in_flight()}


def pins(fleet: Mortals) -> dict[str, int]:
    return {str(engine): engine.pinned for engine in fleet.engines}


def until(holds: Callable[[], bool], what: str) -> None:
    assert counters.eventually(holds, bool), f"never: {what}"


# --- phases: a turn is in it as long as the context lasts ---

Phase = Callable[[Mortals, Talk, bool], AbstractContextManager[Pending]]


@contextlib.contextmanager
def cold_prefill(fleet: Mortals, talk: Talk, stream: bool) -> Iterator[Pending]:
    """Prefill computes."""
    prefill, decode = fleet.prefill[0], fleet.decode[0]
    talk.messages = [system(), user(LONG)]
    with ExitStack() as holds:
        with talk.router.only(prefill, decode):
            pending = talk.send(stream=stream)
            until(lambda: prefill.running > 0, "prefill computes")
            holds.enter_context(prefill.core_held())
        assert (talk.router.in_flight(prefill), talk.router.in_flight(decode)) == (1, 0)
        yield pending


@contextlib.contextmanager
def pull(fleet: Mortals, talk: Talk, stream: bool) -> Iterator[Pending]:
    """Prefill reads decode's KV."""
    talk.open()
    with fleet.decode[0].core_held():
        pending = talk.send(NEXT["content"], stream=stream)
        until(lambda: fleet.prefill[0].waiting > 0, "prefill waits for decode's KV")
        yield pending


@contextlib.contextmanager
def between_the_legs(fleet: Mortals, talk: Talk, stream: bool, tokens: int = 16) -> Iterator[Pending]:
    """Prefill is done, decode has not read the request."""
    prefill, decode = fleet.prefill[0], fleet.decode[0]
    talk.open()
    with decode.api_held():
        pending = talk.send(NEXT["content"], stream=stream, tokens=STORY if stream else tokens)
        until(lambda: talk.router.in_flight(decode) > 0, "the decode leg is sent")
        assert talk.router.in_flight(prefill) == 0
        yield pending


@contextlib.contextmanager
def hand_over(fleet: Mortals, talk: Talk, stream: bool) -> Iterator[Pending]:
    """Decode reads prefill's KV. Now and then it has read it although prefill is held; then it has not come
    far in the answer."""
    prefill, decode = fleet.prefill[0], fleet.decode[0]
    with ExitStack() as holds:
        with between_the_legs(fleet, talk, stream, tokens=200) as pending:
            holds.enter_context(prefill.core_held())
        until(lambda: decode.waiting + decode.running > 0, "decode has begun")
        holds.enter_context(decode.core_held())
        yield pending


@contextlib.contextmanager
def generation(fleet: Mortals, talk: Talk, stream: bool) -> Iterator[Pending]:
    """Decode computes an answer, of which the client has seen the beginning if it is a stream."""
    decode = fleet.decode[0]
    talk.open()
    pending = talk.send(NEXT["content"], stream=stream, tokens=STORY if stream else 400)
    if stream:
        pending.begun()
    else:
        until(lambda: decode.running > 0, "decode computes")
    with decode.core_held():
        yield pending


@contextlib.contextmanager
def append(fleet: Mortals, talk: Talk, stream: bool) -> Iterator[Pending]:
    """Decode computes what is new in the prompt; no first byte yet."""
    decode = fleet.decode[0]
    talk.open()
    pending = talk.send(LONG, stream=stream)
    until(lambda: decode.running > 0, "decode computes")
    with decode.core_held():
        assert (talk.router.in_flight(fleet.prefill[0]), talk.router.in_flight(decode)) == (0, 1)
        yield pending


@contextlib.contextmanager
def append_generation(fleet: Mortals, talk: Talk, stream: bool) -> Iterator[Pending]:
    """As :func:`generation`, after an append."""
    with generation(fleet, talk, stream) as pending:
        yield pending


def router_of(fleet: Mortals, phase: Phase) -> Router:
    return fleet.appends if phase in (append, append_generation) else fleet.reuses


streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def named(*phases: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("phase", phases, ids=lambda phase: phase.__name__.replace("_", " "))


# --- kill -9 ---


def killed(
    fleet: Mortals, begin: Begin, phase: Phase, stream: bool, kill: Callable[[], None]
) -> tuple[Answer, Answer]:
    """Kill in a phase. The turn's answer, and that of the next one; both are exact, as are a bystander's."""
    router = router_of(fleet, phase)
    bystander, talk = begin(router), begin(router)
    bystander.open()
    with phase(fleet, talk, stream) as pending:
        kill()
    answer = talk.take(pending)
    bystander.turn(BYSTANDER)
    return answer, talk.turn("And then?")


@named(cold_prefill, pull, between_the_legs, hand_over)
def test_prefill_dies_and_the_turn_is_answered(phase: Phase, fleet: Mortals, begin: Begin) -> None:
    burned = fleet.reuses.count("antiphon_handles_total", event="burned")
    answer, later = killed(fleet, begin, phase, False, fleet.prefill[0].kill)
    if phase is cold_prefill:
        assert answer.reuse["path"] == "cold"
    if phase is pull:  # the handle went with the first attempt
        assert (answer.reuse["path"], answer.reuse["reason"]) == ("cold", "failed")
        # The bystander's turn and the later one have handles of their own.
        assert fleet.reuses.count("antiphon_handles_total", event="burned") == burned + 3
    assert later.reuse["path"] == "reuse"


@named(cold_prefill, pull, between_the_legs, hand_over, generation, append)
def test_decode_dies_before_the_first_byte_and_the_turn_is_answered(
    phase: Phase, fleet: Mortals, begin: Begin
) -> None:
    answer, later = killed(fleet, begin, phase, False, fleet.decode[0].kill)
    assert answer.reuse["path"] == "cold"
    assert later.reuse["path"] == ("append" if phase is append else "reuse")


def test_decode_dies_in_the_middle_of_a_stream_and_the_client_is_told(fleet: Mortals, begin: Begin) -> None:
    told_of_death(fleet, begin, fleet.decode[0].kill)


def told_of_death(fleet: Mortals, begin: Begin, kill: Callable[[], None]) -> None:
    bystander, talk = begin(fleet.reuses), begin(fleet.reuses)
    bystander.open()
    with generation(fleet, talk, True) as pending:
        kill()
    with pytest.raises(FailedError) as failure:
        pending.answer()
    assert failure.value.status == 200
    assert failure.value.error["message"]
    assert pending.seen
    assert pending.seen == talk.expected(len(pending.seen)).ids
    bystander.turn(BYSTANDER)
    talk.messages.pop()  # the client asks anew
    answer = talk.turn("And then?")
    assert answer.reuse["path"] == "cold"
    assert talk.turn("And now?").reuse["path"] == "reuse"


def test_prefill_dies_in_the_middle_of_a_stream_and_nobody_notices(fleet: Mortals, begin: Begin) -> None:
    talk = begin(fleet.reuses)
    talk.open()
    pending = talk.send(NEXT["content"], stream=True, tokens=200)
    pending.begun()
    fleet.prefill[0].kill()
    assert talk.take(pending).reuse["path"] == "reuse"
    until(lambda: not all(health(fleet.reuses)), "the death is noticed")  # a short stream ends before
    assert talk.turn("And then?").reuse["path"] == "reuse"


def test_prefill_dies_between_turns_and_another_pulls(fleet: Mortals, begin: Begin) -> None:
    talk = begin(fleet.reuses)
    talk.open()
    fleet.prefill[0].kill()
    until(lambda: not all(health(fleet.reuses)), "the death is noticed")
    assert talk.turn(NEXT["content"]).reuse["path"] == "reuse"
    assert talk.turn("And then?").reuse["path"] == "reuse"


@pytest.mark.parametrize("path", ["reuse", "append"])
def test_decode_dies_between_turns_and_the_next_is_cold(path: str, fleet: Mortals, begin: Begin) -> None:
    talk = begin(fleet.reuses if path == "reuse" else fleet.appends)
    talk.open()
    fleet.decode[0].kill()
    assert talk.turn(NEXT["content"]).reuse["path"] == "cold"
    assert talk.turn("And then?").reuse["path"] == path


@named(cold_prefill, pull)
def test_core_of_prefill_crashes_and_the_turn_is_answered(phase: Phase, fleet: Mortals, begin: Begin) -> None:
    answer, later = killed(fleet, begin, phase, False, fleet.prefill[0].crash)
    assert answer.reuse["path"] == "cold"
    assert later.reuse["path"] == "reuse"


def test_core_of_decode_crashes_in_the_middle_of_a_stream_and_the_client_is_told(
    fleet: Mortals, begin: Begin
) -> None:
    told_of_death(fleet, begin, fleet.decode[0].crash)


# --- another life on the same port ---


@pytest.mark.parametrize("path", ["reuse", "append"])
def test_decode_returns_as_another_and_its_frontiers_are_gone(
    path: str, fleet: Mortals, begin: Begin, special: Special
) -> None:
    # A lease so long that it does not end by itself meanwhile.
    router, decode = special(path, ANTIPHON_LEASE_TTL="300"), fleet.decode[0]
    talk = begin(router)
    talk.open()
    until(lambda: router.count("antiphon_leases_total", event="renewed") > 0, "the lease is renewed")
    before = router.workers()[decode.url]["epoch"]
    restart(decode)
    until(lambda: router.workers()[decode.url]["epoch"] not in {before, None}, "a new life is noticed")
    until(lambda: router.frontiers() == 0, "what the old one held is dropped")
    with router.only(fleet.prefill[0], decode):
        answer = talk.turn(NEXT["content"])
        assert (answer.reuse["path"], answer.reuse["reason"]) == ("cold", "lost")
        assert talk.turn("And then?").reuse["path"] == path


def test_restart_that_the_router_has_not_noticed_gives_no_wrong_token(
    fleet: Mortals, begin: Begin, special: Special
) -> None:
    """Handles of the old life go to a prefill engine that has read from it, and to one that never met it,
    unless a renewal has told the router meanwhile that the lease is unknown."""
    decode = fleet.decode[0]
    blind = special(ANTIPHON_PROBE_INTERVAL="3600", ANTIPHON_RENEW_INTERVAL="60", ANTIPHON_LEASE_TTL="300")
    met, new = begin(blind), begin(blind)
    for talk in (met, new):
        talk.open()
    met.turn(NEXT["content"], tokens=80)
    restart(fleet.prefill[1])
    restart(decode)
    sent: list[Pending] = []
    for talk, prefill in zip((met, new), fleet.prefill, strict=True):
        with blind.only(prefill, decode):
            sent.append(talk.send("And then?"))
            until(lambda: any(busy(blind).values()), "it is placed")
    for talk, pending in zip((met, new), sent, strict=True):
        assert talk.take(pending).reuse["path"] == "cold"
        talk.turn("And now?")


def test_prefill_returns_as_another_and_reads_again(fleet: Mortals, begin: Begin) -> None:
    router, prefill = fleet.reuses, fleet.prefill[0]
    talk = begin(router)
    talk.open()
    before = router.workers()[prefill.url]["epoch"]
    restart(prefill)
    until(lambda: router.workers()[prefill.url]["epoch"] not in {before, None}, "a new life is noticed")
    with router.only(prefill, fleet.decode[0]):
        assert talk.turn(NEXT["content"]).reuse["path"] == "reuse"


def restart(engine: Engine) -> None:
    engine.kill()
    engine.start()
    engine.await_up()


# --- handles ---


def test_lease_that_nobody_renewed_ends_and_the_turn_is_cold(
    fleet: Mortals, begin: Begin, special: Special
) -> None:
    talk = begin(special(ANTIPHON_LEAST_CHANCE="1"))
    talk.open()
    assert fleet.decode[0].pinned == 1
    until(lambda: fleet.decode[0].pinned == 0, "the lease is over")
    answer = talk.turn(NEXT["content"])
    assert answer.reuse["path"] == "cold"
    assert answer.reuse["reason"] in {"expired", "lost"}
    assert talk.turn("And then?").reuse["path"] == "reuse"


def test_handle_is_used_once_when_two_turns_want_it(fleet: Mortals, begin: Begin) -> None:
    talk, twin = begin(fleet.reuses), begin(fleet.reuses)
    burned = fleet.reuses.count("antiphon_handles_total", event="burned")
    with pull(fleet, talk, False) as first:
        twin.id, twin.salt, twin.messages = talk.id, talk.salt, list(talk.messages[:-1])
        second = twin.send("Another question at the same time.")
        until(lambda: fleet.reuses.in_flight(fleet.decode[0]) == 1, "the second is with decode")
    assert talk.take(first).reuse["path"] == "reuse"
    assert twin.take(second).reuse["path"] == "cold"
    assert fleet.reuses.count("antiphon_handles_total", event="burned") == burned + 1


def test_handle_of_a_client_is_dropped(fleet: Mortals, begin: Begin) -> None:
    """A real one, twice."""
    talks, decode = [begin(fleet.reuses), begin(fleet.reuses)], fleet.decode[0]
    salt = uuid.uuid4().hex
    with httpx.Client(timeout=60, trust_env=False, headers=legs.PROTOCOL) as http:
        body = legs.chat_body(FIRST, salt, 40, legs.DIRECT)
        handle = http.post(f"{decode.url}/v1/chat/completions", json=body).json()["kv_transfer_params"]
        sent = {**handle, "do_remote_decode": True, "do_remote_prefill": False}
        for talk in talks:
            pending = Pending(
                fleet.reuses.url, FIRST, conversation=talk.id, salt=salt, kv_transfer_params=sent
            )
            answer = pending.answer()
            assert answer.reuse["path"] == "cold"
            assert_same(answer, talk.expected(16), "the turn")
        ended = legs.release(http, decode.url, handle)["leases"]
        assert ended[handle["remote_request_id"]] != "unknown", "somebody has used it"


# --- the client leaves ---


@streaming
@named(cold_prefill, pull, between_the_legs, hand_over, generation, append, append_generation)
def test_client_leaves(phase: Phase, stream: bool, fleet: Mortals, begin: Begin) -> None:
    """What moves KV ends by itself, the rest is cancelled; engines live on, and nothing stays pinned."""
    router = router_of(fleet, phase)
    bystander, talk = begin(router), begin(router)
    bystander.open()
    before = [engine.finished for engine in fleet.engines]
    gone = router.count("antiphon_clients_gone_total")
    with phase(fleet, talk, stream) as pending:
        pending.leave()
        until(lambda: router.count("antiphon_clients_gone_total") > gone, "the router notices")
    until(lambda: not any(busy(router).values()), "all legs end")
    until(lambda: not any(engine.running + engine.waiting for engine in fleet.engines), "engines are idle")
    assert all(engine.runs for engine in fleet.engines)
    kept = [0, 0, 1, 0]  # the bystander's; all else is released, long before it would end by itself
    assert counters.eventually(lambda: [*pins(fleet).values()], lambda now: now == kept, LEASE_S / 3) == kept
    finished = [engine.finished - count for engine, count in zip(fleet.engines, before, strict=True)]
    assert finished == expected_to_finish(phase, stream)
    bystander.turn(BYSTANDER)
    talk.messages[-1:] = [user("Never mind. And then?")]
    assert talk.take(talk.send()).reuse["path"] == "cold"


def expected_to_finish(phase: Phase, stream: bool) -> list[int]:
    """Requests of both prefill and both decode engines: those of the first turn, and what is not cancelled
    of the one that was left."""
    if phase is cold_prefill:
        return [0, 0, 0, 0]
    if phase in (append, append_generation):
        return [1, 0, 1, 0]
    # A whole reply does not tell when decode has read prefill's KV, so it is left to its end.
    whole_reply = not stream and phase in (between_the_legs, hand_over, generation)
    return [2, 0, 2 if whole_reply else 1, 0]
