from __future__ import annotations

from collections.abc import Iterator

import httpx
import msgspec
import pytest
import respx

from antiphon_server.bench.engines import PATIENCE_S, REST_PATIENCE_S, REST_S, Engines
from antiphon_server.protocol import LeaseReply

P, D = "http://prefill", "http://decode"


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engines(clock: Clock) -> Iterator[Engines]:
    engines = Engines([P], [D], key="secret", clock=clock, sleep=clock.sleep)
    yield engines
    engines.close()


def pins(count: int) -> httpx.Response:
    return httpx.Response(200, content=msgspec.json.encode(LeaseReply(leases={}, pinned=count)))


@respx.mock
def test_pins_are_summed_over_all_engines_and_asked_for_with_their_key(engines: Engines) -> None:
    asked = [respx.post(f"{url}/antiphon/leases").mock(return_value=pins(2)) for url in (P, D)]
    assert engines.pinned() == 4
    assert all(route.calls[0].request.headers["authorization"] == "Bearer secret" for route in asked)


@respx.mock
def test_engine_without_leases_leaves_pins_unknown(engines: Engines) -> None:
    respx.post(f"{P}/antiphon/leases").mock(return_value=httpx.Response(404))
    respx.post(f"{D}/antiphon/leases").mock(return_value=pins(0))
    assert engines.settle() == (None, 0.0)


@respx.mock
def test_settling_ends_when_nothing_is_pinned(engines: Engines) -> None:
    respx.post(f"{P}/antiphon/leases").mock(return_value=pins(0))
    respx.post(f"{D}/antiphon/leases").mock(side_effect=[pins(1), pins(1), pins(0)])
    pinned, elapsed = engines.settle()
    assert pinned == 0
    assert elapsed == pytest.approx(0.1)


@respx.mock
def test_pins_that_stay_are_told(engines: Engines) -> None:
    respx.post(f"{P}/antiphon/leases").mock(return_value=pins(0))
    respx.post(f"{D}/antiphon/leases").mock(return_value=pins(3))
    pinned, elapsed = engines.settle()
    assert pinned == 3
    assert elapsed > PATIENCE_S


@respx.mock
def test_prefix_cache_is_emptied_once_its_blocks_are_free(engines: Engines) -> None:
    answers = [httpx.Response(200, json={"success": success}) for success in (False, True)]
    route = respx.post(f"{P}/reset_prefix_cache").mock(side_effect=answers)
    assert engines.forget_prefill() is True
    assert route.call_count == 2


@respx.mock
def test_prefix_cache_that_stays_in_use_is_an_error(engines: Engines) -> None:
    respx.post(f"{P}/reset_prefix_cache").mock(return_value=httpx.Response(200, json={"success": False}))
    with pytest.raises(TimeoutError, match="blocks are still in use"):
        engines.forget_prefill()


@respx.mock
def test_engine_that_cannot_empty_its_prefix_cache_says_so(engines: Engines) -> None:
    respx.post(f"{P}/reset_prefix_cache").mock(return_value=httpx.Response(404))
    assert engines.forget_prefill() is False


@respx.mock
def test_stock_engine_tells_nothing_of_itself(engines: Engines) -> None:
    respx.get(f"{D}/antiphon/info").mock(return_value=httpx.Response(404))
    assert engines.info() is None


def running(count: int) -> httpx.Response:
    return httpx.Response(
        200, text=f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {count}\n"
    )


@respx.mock
def test_rest_begins_anew_with_each_request(engines: Engines, clock: Clock) -> None:
    respx.get(f"{P}/metrics").mock(return_value=running(0))
    route = respx.get(f"{D}/metrics").mock(side_effect=[running(n) for n in (1, 1, 0, 0, 1, *[0] * 99)])
    assert engines.rest() is True
    assert clock.now == pytest.approx(0.2 + REST_S)
    assert route.call_count == round(clock.now / 0.05)


@respx.mock
def test_engines_that_do_not_rest_are_told(engines: Engines, clock: Clock) -> None:
    respx.get(f"{P}/metrics").mock(return_value=running(0))
    respx.get(f"{D}/metrics").mock(return_value=running(2))
    assert engines.rest() is False
    assert clock.now == pytest.approx(REST_PATIENCE_S, abs=0.1)
