"""Whatever engines and routers do, the doctor comes to an end: in time, and in memory."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import msgspec
import pytest

from antiphon_server.doctor.fleet import checks
from antiphon_server.doctor.fleet.client import LEGS, LONGEST_LEG_S, RUN, Patience
from antiphon_server.doctor.fleet.examine import examine
from antiphon_server.doctor.fleet.pair import LegError, Pair
from antiphon_server.doctor.fleet.target import FleetTarget
from antiphon_server.protocol import INFO_PATH, LEASES_PATH
from antiphon_server.router.config import bounded
from doctor.live import hostile as wire
from doctor.live.hostile import Act, Hostile, engine, hostile, say, tell
from doubles.engine_info import info

FAST = Patience(answer=0.5, leg=0.5)


@pytest.fixture
def open_() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("path", ["/health", INFO_PATH])
@pytest.mark.parametrize("slowly", [wire.trickle, wire.trickle_head], ids=["body", "head"])
def test_engine_that_trickles_is_left(path: str, slowly: Callable[[bytes], Act], open_: ExitStack) -> None:
    good = msgspec.json.encode(info(role="decode"))
    decode = open_.enter_context(hostile({**engine("decode"), path: slowly(good)}))
    found = examine(FleetTarget(decode=(decode.url,), probe=False, timeout=0.5))
    (finding,) = (one for one in found.findings if one.check == checks.ENGINE.word)
    assert "no whole answer within 0.5 s" in finding.what


def test_router_that_trickles_is_left(open_: ExitStack) -> None:
    acts = {"/health": say(b""), "/ready": wire.trickle(b'{"status": "ready"}')}
    router = open_.enter_context(hostile(acts))
    found = examine(FleetTarget(router.url, timeout=0.5))
    (finding,) = found.findings
    assert (finding.check, "no whole answer within 0.5 s" in finding.what) == (checks.ROUTER.word, True)


@pytest.mark.parametrize("path", ["/health", INFO_PATH, "/v1/models", "/metrics"])
def test_endless_answers_of_an_engine_are_cut_off(path: str, open_: ExitStack) -> None:
    decode = open_.enter_context(hostile({**engine("decode"), path: wire.endless}))
    found = examine(FleetTarget(decode=(decode.url,), probe=False, timeout=60.0))
    said = [one.what for one in found.findings if one.check == checks.ENGINE.word]
    # What engines tell besides is not judged where it is not told.
    assert bool(said) == (path in {"/health", INFO_PATH})
    assert all(f"answers more than {bounded.OTHER_BYTES} bytes" in what for what in said)


@pytest.mark.parametrize("path", ["/ready", "/v1/models", "/metrics", "/admin/config"])
def test_endless_answers_of_a_router_are_cut_off(path: str, open_: ExitStack) -> None:
    sound = {"/health": say(b""), "/ready": tell({"status": "ready"}), "/v1/models": tell({"data": []})}
    config = {"/admin/config": tell({"settings": {}}), "/metrics": say(b"")}
    router = open_.enter_context(hostile({**sound, **config, path: wire.endless}))
    found = examine(FleetTarget(router.url, admin_key="a", timeout=60.0))
    (finding,) = found.findings
    assert "answers more than " in finding.what


def pair_of(open_: ExitStack, **acts: Act) -> tuple[Hostile, Hostile]:
    """A sound prefill, and a decode engine that does as told."""
    handle = {"remote_request_id": "lease-p", "remote_host": "127.0.0.1"}
    prefill = engine("prefill", completions=tell({"choices": [{}], "kv_transfer_params": handle}))
    return open_.enter_context(hostile(prefill)), open_.enter_context(hostile(engine("decode", **acts)))


def test_engine_that_hangs_in_a_probe_is_left_and_what_it_left_is_released(open_: ExitStack) -> None:
    prefill, decode = pair_of(open_, completions=wire.hang)
    with Pair(prefill.url, decode.url, "m", key="k", stock=False, patience=FAST) as pair:
        with pytest.raises(LegError, match=r"no whole answer within 0\.5 s"):
            pair.cold([1, 2, 3], "salt", 4)
        assert prefill.bodies(LEASES_PATH) == []
    assert [json.loads(body) for body in prefill.bodies(LEASES_PATH)] == [{"release": ["lease-p"]}]


def test_whole_fleet_that_hangs_in_probes_is_left(open_: ExitStack) -> None:
    prefill, decode = pair_of(open_, completions=wire.hang)
    found = examine(FleetTarget(None, (prefill.url,), (decode.url,), timeout=0.2))
    said = [one.what for one in found.findings if one.check == checks.LEG.word]
    assert len(said) == 1
    assert said[0].endswith("no whole answer within 2 s")


def test_releases_are_sent_once_an_engine_and_even_when_time_is_over(open_: ExitStack) -> None:
    prefill, decode = pair_of(open_, completions=say(b"", 500))
    left = [60.0]
    patience = Patience(answer=0.5, leg=60.0, left=lambda: left[0])
    with Pair(prefill.url, decode.url, "m", key=None, stock=False, patience=patience) as pair:
        for _ in range(2):
            with pytest.raises(LegError):
                pair.cold([1, 2, 3], "salt", 4)
        left[0] = 0.0
        with pytest.raises(LegError, match="time for all of it is over"):
            pair.plain([1], "salt", 1)
    assert [json.loads(body) for body in prefill.bodies(LEASES_PATH)] == [{"release": ["lease-p"] * 2}]


def test_examination_that_takes_too_long_says_so(open_: ExitStack) -> None:
    prefill, decode = pair_of(open_)
    ticks = itertools.count(0, 250)
    found = examine(FleetTarget(None, (prefill.url,), (decode.url,)), clock=lambda: float(next(ticks)))
    assert checks.IN_TIME.word in found.checked
    (finding,) = (one for one in found.findings if one.check == checks.IN_TIME.word)
    assert "the 300 s for all of it were over" in finding.what


def test_times_follow_the_one_that_is_given() -> None:
    now = [100.0]
    patience = Patience.of(2.0, lambda: now[0])
    assert (patience.answer, patience.leg, patience.left()) == (2.0, 2.0 * LEGS, 2.0 * RUN)
    now[0] += 130
    assert patience.left() == -10
    assert Patience.of(60.0).leg == LONGEST_LEG_S
