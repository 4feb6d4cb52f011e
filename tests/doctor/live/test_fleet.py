"""Faults planted in a running fleet of simulated engines, found over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import httpx
import msgspec
import pytest

from antiphon_server.doctor.finding import Check, Examination
from antiphon_server.doctor.fleet import asking, checks
from antiphon_server.doctor.fleet.examine import MOST_PAIRS, TRIAL, length, pairs
from antiphon_server.doctor.fleet.facts import Engine, EngineSeen, Trouble
from antiphon_server.doctor.fleet.pair import LegError, Pair
from antiphon_server.doctor.fleet.round_trip import TOKENS
from antiphon_server.protocol import Deadline, LeaseReply
from antiphon_server.simulator import Fault, SimulatedEngine
from doubles.engine_info import info

Examined = Callable[..., tuple[Examination, list[str]]]
NOBODY = "http://127.0.0.1:9"


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_sound_fleet_is_probed_without_a_finding_and_left_empty(examined: Examined, caching: bool) -> None:
    stacks: list[Any] = []
    found, words = examined(prefill={"prefix_caching": caching}, plant=stacks.append)
    assert words == []
    assert found.checked == {check.word for check in checks.FLEET}
    facts = {fact.name: fact.value for fact in found.facts}
    assert "2047 tokens" in facts["prefill to decode"]
    assert int(facts["decode to prefill"].split()[0]) > 2048  # even where prefill has the first turn cached
    assert "path=reuse" in facts["turn 2 of a conversation"]
    engines = (stacks[0].prefill, stacks[0].decode)
    assert eventually(lambda: not any(engine.pinned for engine in engines))


def test_without_probes_no_turn_is_sent(examined: Examined) -> None:
    stacks: list[Any] = []
    found, words = examined(plant=stacks.append, probe=False)
    assert words == []
    assert checks.ROUND_TRIP.word not in found.checked
    assert stacks[0].decode.requests == []


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("kind", [{"check": False}, {"antiphon": False}], ids=["unchecked", "stock"])
def test_engines_that_believe_every_handle_are_found_out(
    examined: Examined, kind: dict[str, Any], caching: bool
) -> None:
    found, words = examined(prefill={"prefix_caching": caching, **kind}, decode=kind)
    assert checks.REWRITTEN.word in words
    assert checks.EXACT.word not in words
    (finding,) = (one for one in found.findings if one.check == checks.REWRITTEN.word)
    assert "with reuse" in finding.what
    assert ("kv_connector" in finding.remedy) == ("antiphon" in kind)
    assert (checks.EXACT_ROUTER.word in words) == ("check" in kind)  # the router uses no stock handle
    assert (checks.ENGINE_STOCK.word in words) == ("antiphon" in kind)


def test_keys_are_used_and_a_missing_one_is_found(examined: Examined) -> None:
    guarded: dict[str, Any] = {
        "prefill": {"api_key": "e"},
        "decode": {"api_key": "e"},
        "router": {"engine_key": "e", "api_keys": "team=c", "admin_key": "a"},
    }
    keys = {"engine_key": "e", "api_key": "c", "admin_key": "a"}
    assert examined(**guarded, **keys)[1] == []
    for name, check in (
        ("engine_key", checks.ENGINE_KEY),
        ("api_key", checks.ROUTER_KEY),
        ("admin_key", checks.ROUTER_KEY),
    ):
        found, words = examined(**guarded, **{**keys, name: "wrong"})
        assert set(words) == {check.word}
        assert "wrong" not in str(found)


def test_key_that_a_stock_engine_refuses_for_models_is_found() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401 if request.url.path.startswith("/v1/") else 200)

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        seen = asking.seen_engine(http, Engine("decode", "http://d"), found=False)
    assert seen.asked.kind is Trouble.KEY


def test_engines_that_only_the_router_names_are_examined_too(examined: Examined) -> None:
    found, words = examined(decode={"reuse": False}, probe=False, prefill_urls=(), decode_urls=())
    assert set(words) == {checks.REUSE.word, checks.ONE_SIDED.word}
    assert any(finding.subject.startswith("decode http") for finding in found.findings)


def change(name: str, **counters: int) -> Callable[[Any], None]:
    """Set counters of one engine."""

    def plant(stack: Any) -> None:
        for counter, value in counters.items():
            setattr(getattr(stack, name).counters, counter, value)

    return plant


def ill(stack: Any) -> None:
    stack.prefill.faults.add(Fault(kind="status", path="/health", times=1))


def twins(stack: Any) -> None:
    stack.decode.engine_id = stack.prefill.engine_id


LOOKED: dict[str, tuple[dict[str, Any], Check, str]] = {
    "no router": ({"router_url": NOBODY}, checks.ROUTER, "does not answer"),
    "no engine": ({"prefill_urls": (NOBODY,)}, checks.ENGINE, "does not answer"),
    "an ill engine": ({"plant": ill}, checks.ENGINE, "/health answers 503"),
    "one id for two": ({"plant": twins}, checks.ENGINE_ID, "both have"),
    "short leases": ({"decode": {"longest_lease": 30.0}}, checks.LEASES, "at most"),
    "a first lease that ends too early": ({"decode": {"decode_lease": 20.0}}, checks.LEASES, "20 s"),
    "a router that renews seldom": (
        {"router": {"renew_interval": 55.0, "lease_ttl": 70.0, "admin_key": "a"}, "admin_key": "a"},
        checks.LEASES,
        "ends before",
    ),
    "little KV": ({"decode": {"capacity": 600}}, checks.CAPACITY, "4800 may rest"),
    "large threshold": ({"prefill": {"threshold": 5000}}, checks.THRESHOLD, "5000"),
    "failed transfers": ({"plant": change("prefill", failed_transfers=3)}, checks.TRANSFERS, "3 transfers"),
    "late reads": ({"plant": change("decode", late_notifications=2)}, checks.LATE, "2 reads"),
    "other blocks": ({"decode": {"block_size": 32}}, checks.PAIR, "block size"),
    "other models": ({"decode": {"model": "other"}}, checks.PAIR, "model differs"),
}


@pytest.mark.parametrize("name", LOOKED)
def test_fault_of_a_running_fleet_is_found_by_looking(name: str, examined: Examined) -> None:
    given, check, said = LOOKED[name]
    found, words = examined(**given, probe=False)
    assert words == [check.word]
    assert said in found.findings[0].what


def test_roles_that_are_swapped_are_found(examined: Examined) -> None:
    urls: dict[str, Any] = {}

    def swap(stack: Any) -> None:
        urls.update(prefill_urls=(stack.decode_url,), decode_urls=(stack.prefill_url,))

    _, words = examined(plant=swap, probe=False, router_url=None, later=urls)
    assert words == [checks.ENGINE_ROLE.word] * 2


def test_engine_of_another_protocol_is_found(examined: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    own = SimulatedEngine.info
    monkeypatch.setattr(
        SimulatedEngine, "info", lambda engine: msgspec.structs.replace(own(engine), protocol=9)
    )
    found, words = examined(probe=False, router_url=None)
    assert words == [checks.ENGINE_PROTOCOL.word] * 2
    assert "protocol 9" in found.findings[0].what


def test_leg_that_fails_is_told_with_its_answer_and_nothing_stays(examined: Examined) -> None:
    stacks: list[Any] = []

    def plant(stack: Any) -> None:
        stacks.append(stack)
        stack.decode.faults.add(Fault(kind="status", path="/v1/completions", code=507, times=50))

    found, words = examined(plant=plant, router_url=None)
    assert words == [checks.LEG.word]
    assert "507" in found.findings[0].what
    assert eventually(lambda: not stacks[0].prefill.pinned)


def test_prefill_keeps_nothing_for_a_decode_leg_that_failed(simulated_stack: Callable[..., Any]) -> None:
    stack = simulated_stack()
    with Pair(stack.prefill_url, stack.decode_url, "simulated", key=None, stock=False) as pair:
        stack.decode.faults.add(Fault(kind="status", path="/v1/completions", code=507))
        with pytest.raises(LegError, match="507"):
            pair.cold([1, 2, 3] * 100, "salt", 4)
        assert stack.prefill.pinned
    assert not stack.prefill.pinned


def test_prefill_that_never_pulls_fails_the_round_trip(
    examined: Examined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon_server.doctor.fleet.round_trip.PATIENCE_S", 0.2)
    found, words = examined(prefill={"threshold": 100_000}, router_url=None)
    assert set(words) == {checks.THRESHOLD.word, checks.ROUND_TRIP.word}
    (finding,) = (one for one in found.findings if one.check == checks.ROUND_TRIP.word)
    assert "pulled nothing from decode (it says: threshold)" in finding.what


def test_stream_without_a_handle_is_found(examined: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "antiphon_server.simulator.reply.handle_event", lambda handle: b'data: {"object": "other"}\n\n'
    )
    assert examined(router_url=None)[1] == [checks.STREAM_HANDLE.word]


def test_lease_that_does_not_end_when_released_is_found(
    examined: Examined, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(engine: Any, request: Any) -> LeaseReply:
        leases: dict[str, Deadline] = {}
        for lease in request.release:
            leases[lease] = "unknown"
        return LeaseReply(leases, 0)

    monkeypatch.setattr(SimulatedEngine, "lease", unknown)
    assert examined(router_url=None)[1] == [checks.RELEASED.word]


def test_slow_engines_and_short_contexts_get_shorter_prompts() -> None:
    assert length(0.0, None) == length(0.1, 131_072) == TOKENS
    assert length(1.5, None) == 1024  # SmolLM2 on a CPU
    assert length(60.0, None) == TRIAL
    assert length(0.1, 2048) == 512


def test_enough_pairs_are_probed_to_have_each_engine_in_one() -> None:
    roles: tuple[Literal["prefill", "decode"], ...] = ("prefill", "decode")

    def named(role: Any, number: int, kind: Trouble | None = None) -> EngineSeen:
        return EngineSeen(Engine(role, f"http://{role}-{number}", kind=kind))

    prefill = [named("prefill", number) for number in range(2)]
    decode = [named("decode", number) for number in range(3)]
    chosen = [*pairs([*prefill, *decode, named("decode", 9, Trouble.SILENT)])]
    assert chosen == [(prefill[0], decode[0]), (prefill[1], decode[1]), (prefill[0], decode[2])]
    assert [*pairs(prefill)] == []
    apart = [
        EngineSeen(Engine(role, f"http://{role}", info(role=role, block_size=size)))
        for role, size in zip(roles, (16, 32), strict=True)
    ]
    assert [*pairs(apart)] == []
    assert len(chosen) <= MOST_PAIRS
