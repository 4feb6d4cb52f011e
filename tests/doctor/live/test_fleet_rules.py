"""Faults that engines and routers tell of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from antiphon_server.doctor.finding import Check, Finding, Severity
from antiphon_server.doctor.fleet import checks
from antiphon_server.doctor.fleet.examine import examine
from antiphon_server.doctor.fleet.facts import (
    Engine,
    EngineSeen,
    FleetFacts,
    Mishaps,
    RouterSeen,
    RouterTimes,
    RouterTrouble,
    Trouble,
    WorkerSeen,
    mishaps,
    read_router,
)
from antiphon_server.doctor.fleet.rules import facts, findings
from antiphon_server.doctor.fleet.target import FleetTarget
from antiphon_server.protocol import Info, LeaseLimits
from antiphon_server.router.fleet.workers import Role
from doctor.live.hostile import hostile
from doubles.engine_info import info

P, D, R = "http://p:8100", "http://d:8200", "http://r:8000"
IDS = {"prefill": str(UUID(int=1, version=4)), "decode": str(UUID(int=2, version=4))}


def told(role: Role, **given: Any) -> Info:
    own: dict[str, Any] = {"role": role, "engine_id": IDS[role], "capacity": 100_000, "dtype": "bfloat16"}
    return info(**{**own, **given})


def engine(role: Role, **given: Any) -> EngineSeen:
    """A sound one, but for what is given of its info."""
    url = P if role == "prefill" else D
    return EngineSeen(Engine(role, url, told(role, **given)), Mishaps(), "m", 32_768)


def troubled(role: Role, kind: Trouble) -> EngineSeen:
    return EngineSeen(Engine(role, P if role == "prefill" else D, None, "what it is: what to do", kind))


def fleet(
    prefill: EngineSeen | None = None, decode: EngineSeen | None = None, router: RouterSeen | None = None
) -> FleetFacts:
    workers = (WorkerSeen("prefill", P, True, False, False), WorkerSeen("decode", D, True, False, False))
    return FleetFacts(
        (prefill or engine("prefill"), decode or engine("decode")), router or RouterSeen(R, workers=workers)
    )


def seen_router(**given: Any) -> FleetFacts:
    return fleet(router=RouterSeen(R, **given))


def worker(**given: bool) -> tuple[WorkerSeen, ...]:
    return (WorkerSeen("decode", D, **{"healthy": True, "draining": False, "shut_out": False, **given}),)


def limits(decode: float, longest: float = 480.0) -> LeaseLimits:
    return LeaseLimits(decode, 30.0, longest)


ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


FAULTS: dict[str, tuple[FleetFacts, Check, Severity, str]] = {
    "router silent": (
        seen_router(troubles={RouterTrouble.SILENT: "does not answer (refused)"}),
        checks.ROUTER,
        ERROR,
        "refused",
    ),
    "router not ready": (
        seen_router(troubles={RouterTrouble.UNREADY: "waiting"}),
        checks.ROUTER,
        ERROR,
        "waiting",
    ),
    "router's store gone": (seen_router(degraded=True), checks.ROUTER, WARNING, "store"),
    "wrong client's key": (
        seen_router(troubles={RouterTrouble.API_KEY: "401 for /v1/models"}),
        checks.ROUTER_KEY,
        ERROR,
        "401",
    ),
    "wrong admin's key": (
        seen_router(troubles={RouterTrouble.ADMIN_KEY: "404 for /admin/config"}),
        checks.ROUTER_KEY,
        ERROR,
        "404",
    ),
    "worker down": (seen_router(workers=worker(healthy=False)), checks.ROUTER_WORKER, WARNING, "healthy"),
    "worker shut out": (
        seen_router(workers=worker(shut_out=True)),
        checks.ROUTER_WORKER,
        WARNING,
        "shut out",
    ),
    "worker draining": (seen_router(workers=worker(draining=True)), checks.ROUTER_WORKER, NOTE, "draining"),
    "router saw loopback": (seen_router(loopback=7), checks.SIDE_CHANNEL, ERROR, "7 handles"),
    "engine silent": (fleet(troubled("prefill", Trouble.SILENT)), checks.ENGINE, ERROR, "what it is"),
    "engine ill": (fleet(troubled("prefill", Trouble.UNHEALTHY)), checks.ENGINE, ERROR, "what it is"),
    "engine's key": (fleet(troubled("prefill", Trouble.KEY)), checks.ENGINE_KEY, ERROR, "what it is"),
    "other protocol": (
        fleet(troubled("prefill", Trouble.PROTOCOL)),
        checks.ENGINE_PROTOCOL,
        ERROR,
        "what it is",
    ),
    "malformed info": (
        fleet(troubled("prefill", Trouble.MALFORMED)),
        checks.ENGINE_PROTOCOL,
        ERROR,
        "what it is",
    ),
    "stock engine": (fleet(EngineSeen(Engine("prefill", P))), checks.ENGINE_STOCK, WARNING, "stock"),
    "one id twice": (
        fleet(engine("prefill", engine_id=IDS["decode"])),
        checks.ENGINE_ID,
        ERROR,
        IDS["decode"],
    ),
    "fixed id": (fleet(engine("prefill", engine_id="prefill-0")), checks.ENGINE_ID, WARNING, "prefill-0"),
    "other model": (fleet(engine("prefill", model="n")), checks.PAIR, ERROR, "model differs"),
    "other vLLM": (fleet(engine("prefill", vllm="0.31.0")), checks.PAIR, ERROR, "vLLM differs"),
    "other NIXL": (fleet(engine("prefill", nixl="1.4.1")), checks.PAIR, ERROR, "NIXL differs"),
    "other dtype": (fleet(engine("prefill", dtype="float32")), checks.PAIR, ERROR, "dtype differs"),
    "other blocks": (fleet(engine("prefill", block_size=128)), checks.PAIR, ERROR, "block size differs"),
    "other TP": (fleet(engine("prefill", tensor_parallel=4)), checks.PAIR, ERROR, "parallelism differs"),
    "reuse on one side": (
        fleet(engine("prefill"), engine("decode", reuse=False, reuse_reason="two KV groups")),
        checks.ONE_SIDED,
        ERROR,
        "on for prefill and off for decode",
    ),
    "large threshold": (fleet(engine("prefill", threshold=4096)), checks.THRESHOLD, WARNING, "4096"),
    "short longest lease": (
        fleet(decode=engine("decode", leases=limits(45, 45))),
        checks.LEASES,
        ERROR,
        "grants 45 s at most",
    ),
    "lease within the margin": (
        fleet(decode=engine("decode", leases=limits(5))),
        checks.LEASES,
        ERROR,
        "leases of 5 s",
    ),
    "lease ends before it is renewed": (
        fleet(decode=engine("decode", leases=limits(20))),
        checks.LEASES,
        WARNING,
        "20 s ends before",
    ),
    "lease longer than anything is kept": (
        fleet(decode=engine("decode", leases=limits(900))),
        checks.LEASES,
        WARNING,
        "900 s, longer",
    ),
    "little KV": (fleet(decode=engine("decode", capacity=40_000)), checks.CAPACITY, WARNING, "20000 may"),
    "failed transfers": (
        fleet(replace(engine("prefill"), mishaps=Mishaps(failed=3))),
        checks.TRANSFERS,
        WARNING,
        "3 transfers",
    ),
    "late reads": (
        fleet(replace(engine("prefill"), mishaps=Mishaps(late=2))),
        checks.LATE,
        WARNING,
        "2 reads",
    ),
}


def test_sound_fleet_has_no_finding() -> None:
    assert [*findings(fleet())] == []
    told = {fact.name: fact.value for fact in facts(fleet())}
    assert set(told) == {"build", "KV"}
    assert "None" not in told["build"]


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name: str) -> None:
    seen, check, severity, said = FAULTS[name]
    found = [finding for finding in findings(seen) if finding.check == check.word]
    assert [finding.severity for finding in found] == [severity]
    assert said in found[0].what
    assert found[0].remedy
    others = {finding.check for finding in findings(seen)} - {check.word}
    # An engine that declines reuse says so, besides that the other one does not.
    assert others <= ({checks.REUSE.word} if check is checks.ONE_SIDED else set())


def test_roles_that_are_swapped_are_named() -> None:
    asked = Engine("prefill", P, told("decode"), "is a decode engine: name it by --decode", Trouble.ROLE)
    (found,) = only(fleet(EngineSeen(asked)), checks.ENGINE_ROLE)
    assert found.what == "is a decode engine"


@pytest.mark.parametrize("old", [{"vllm": "0.30.2"}, {"nixl": "1.3.1"}])
def test_versions_that_are_too_old_on_both_are_found_on_both(old: dict[str, str]) -> None:
    seen = fleet(engine("prefill", **old), engine("decode", **old))
    assert {finding.subject for finding in only(seen, checks.ENGINE_VERSION)} == {
        f"prefill {P}",
        f"decode {D}",
    }


def test_engines_that_both_decline_reuse_give_their_reasons() -> None:
    no = {"reuse": False, "reuse_reason": "KV groups FullAttentionSpec, MambaSpec"}
    seen = fleet(engine("prefill", **no), engine("decode", **no))
    assert ["MambaSpec" in finding.what for finding in findings(seen)] == [True, True]


def test_silent_engine_that_only_the_router_named_may_be_reachable_for_the_router() -> None:
    seen = fleet(replace(troubled("prefill", Trouble.SILENT), found=True))
    assert [finding.severity for finding in only(seen, checks.ENGINE)] == [WARNING]


def test_router_that_keeps_nothing_needs_no_leases() -> None:
    seen = fleet(
        decode=engine("decode", leases=limits(5)),
        router=RouterSeen(R, times=RouterTimes(paths=["cold"])),
    )
    assert only(seen, checks.LEASES) == []


def test_the_routers_own_settings_are_what_leases_are_held_against() -> None:
    short = RouterTimes(lease_ttl=10.0, renew_interval=3.0, lease_margin=1.0)
    decode = engine("decode", leases=limits(5, 10))
    assert only(fleet(decode=decode, router=RouterSeen(R, times=short)), checks.LEASES) == []
    assert only(fleet(decode=decode), checks.LEASES)


def test_ids_of_data_parallel_engines_are_not_taken_for_fixed_ones() -> None:
    seen = fleet(engine("prefill", engine_id=IDS["prefill"] + "_dp0"))
    assert only(seen, checks.ENGINE_ID) == []


def test_metrics_of_engines_and_routers_are_read() -> None:
    page = (
        'vllm:nixl_num_failed_transfers_total{engine="0"} 2.0\n'
        'vllm:nixl_num_failed_transfers_total{engine="1"} 1.0\n'
        'vllm:nixl_num_failed_notifications_total{engine="0"} 1.0\n'  # counted among the transfers too
        'vllm:nixl_num_kv_expired_reqs_total{engine="0"} 40.0\n'
        'vllm:nixl_num_notifications_after_expiry_total{engine="0"} 4.0\n'
    )
    assert mishaps(page) == Mishaps(failed=3, late=4)
    labels = f'{{role="decode",worker="{D}"}}'
    workers, loopback = read_router(
        f"antiphon_worker_healthy{labels} 1.0\nantiphon_worker_draining{labels} 0.0\n"
        f'antiphon_worker_breaker{labels} 2.0\nantiphon_handles_total{{event="loopback"}} 5.0\n'
        'antiphon_handles_total{event="captured"} 9.0\n'
    )
    assert workers == (WorkerSeen("decode", D, healthy=True, draining=False, shut_out=True),)
    assert loopback == 5


def test_times_of_a_router_are_its_defaults_where_it_does_not_tell() -> None:
    assert msgspec.json.decode(b"{}", type=RouterTimes) == RouterTimes()
    assert RouterTimes().lease_ttl == 60


@pytest.mark.parametrize(("path", "told"), [("/v1", "give the URL without /v1"), ("", "start it")])
def test_the_url_that_clients_take_is_told_from_a_router_that_is_down(path: str, told: str) -> None:
    with hostile({}) as nothing:
        found = examine(
            FleetTarget(f"{nothing.url}{path}", (f"{nothing.url}{path}",), probe=False, timeout=60)
        )
    router, engine = (one for one in found.findings if one.severity is ERROR)
    assert router.what == f"answers 404 to {nothing.url}{path}/health"
    assert router.remedy.startswith(told)
    assert engine.remedy == told or not path


def only(seen: FleetFacts, check: Check) -> list[Finding]:
    return [finding for finding in findings(seen) if finding.check == check.word]
