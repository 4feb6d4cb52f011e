"""Settings follow from figures, and the router takes them as they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon_server.advise.advice import Advice, Asked, advise
from antiphon_server.advise.copying import engine_json, environment, router_yaml
from antiphon_server.advise.hardware import Given
from antiphon_server.advise.retention import Option
from antiphon_server.advise.settings import best_keep
from antiphon_server.router.config.settings import RouterSettings
from doubles.traffic import growing, timed, traffic


def _look(given: Given | None = None, **asked: Any) -> Advice:
    trace = traffic(*(growing(10) for _ in range(20)))
    return advise(trace, Asked(given or Given("qwen3-32b", "p5en"), **asked))


def _values(found: Advice) -> dict[str, str]:
    return {setting.name: setting.value for setting in (*found.settings.router, *found.settings.engine)}


OPTIONS = [
    Option(10.0, found=0.4, pinned=50.0, held=1.0),
    Option(60.0, found=0.5, pinned=100.0, held=1.0),
    Option(120.0, found=0.94, pinned=200.0, held=1.0),
    Option(240.0, found=0.95, pinned=400.0, held=1.0),
    Option(480.0, found=1.0, pinned=800.0, held=1.0),
]


@pytest.mark.parametrize(
    ("room", "keep"),
    [(None, 240.0), (400.0, 120.0), (399.0, 120.0), (199.0, 60.0), (99.0, 10.0), (1.0, 10.0)],
)
def test_kept_is_for_as_short_as_finds_nearly_all_and_fits(room: float | None, keep: float) -> None:
    assert best_keep(OPTIONS, room).keep == keep


def test_kept_is_not_for_less_than_a_lease_without_need() -> None:
    assert best_keep([Option(10.0, 1.0, 1.0, 1.0), Option(60.0, 1.0, 6.0, 1.0)], None).keep == 60.0


def test_shares_follow_from_conversations_and_memory() -> None:
    found = _look(Given("qwen3-32b", "p5en", capacity=1_000_000), conversations=10)
    # Turns rest for 10 s and the last one for 60 s, in 140 s: 26,893 tokens on average. Ten of that, and half
    # as much again, are 40.3 % of 1,000,000.
    assert found.retention.chosen.keep == 60.0
    assert found.retention.chosen.pinned == pytest.approx((10 * 211_500 + 60 * 27_500) / 140)
    assert _values(found)["keep_share"] == "0.45"
    # 500 new tokens take 500 x 17 us and some attention, nine times in 140 s.
    share = 9 * 10 * 500 * (found.hardware.token + found.hardware.attention * 24_000) / 140
    assert 1 / (1 - share) < 1.05
    assert _values(found)["append_slowdown"] == "1.05"
    two = _look(Given("qwen3-32b", "p5en", capacity=1_000_000), conversations=10, decodes=2)
    assert _values(two)["keep_share"] == "0.25"


def test_what_is_not_known_stays_at_its_default() -> None:
    assert _values(_look()) == {
        "paths": "[cold, reuse, append]",
        "keep": "60",
        "keep_share": "0.5",
        "append_slowdown": "1.25",
        "kv_recompute_threshold": "1216",
    }


def test_thresholds_are_whole_blocks() -> None:
    found = _look(Given("glm-5", "p5en"))
    # 226.8 ms a pull, and 95.6 - 4.78 us for each token that is fetched instead of computed.
    assert found.interconnect.break_even == 2498
    assert _values(found)["kv_recompute_threshold"] == "2560"


def test_a_clock_tells_how_many_conversations_are_active() -> None:
    trace = traffic(*(timed(growing(10), begin=float(i)) for i in range(12)))
    found = advise(trace, Asked(Given("qwen3-32b", "p5en")))
    assert found.retention.most == 12
    assert "at once on 1 decode engine" in found.settings.router[2].because


def test_fleet_by_hand() -> None:
    found = _look(Given("qwen3-32b", "p5en", capacity=1_000_000))
    assert found.fleet is not None
    # 100 active conversations; each is active for 140 s, and its ten turns take ``work`` of a prefill engine.
    work = 10 * found.cold.work_off
    assert found.fleet.prefill_off_cold == pytest.approx(100 * work / 140 / 0.7)
    in_flight = sum(5 * (20_300 + 800 * i) for i in range(10)) / 140
    assert found.fleet.decode_off == pytest.approx(100 * in_flight / 900_000)
    pinned = (10 * 211_500 + 60 * 27_500) / 140
    assert found.fleet.decode_on == pytest.approx(100 * (in_flight + pinned) / 900_000)
    assert found.settings.fleet is not None
    assert "prefill to decode about" in found.settings.fleet


@pytest.mark.parametrize("given", [Given("qwen3-32b", "p5en"), Given("gpt-oss-120b", "p5en")])
def test_the_router_takes_them_as_they_are_written(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _look(given).settings
    wanted = {s.name: s.value for s in found.router}
    for settings in (
        RouterSettings(**yaml.safe_load(router_yaml(found))),
        _from(environment(found), monkeypatch),
    ):
        assert "[" + ", ".join(settings.paths) + "]" == wanted["paths"]
        assert settings.keep == float(wanted.get("keep", 480.0))


def _from(lines: str, monkeypatch: pytest.MonkeyPatch) -> RouterSettings:
    for line in lines.splitlines():
        monkeypatch.setenv(*line.split("=", 1))
    return RouterSettings()


def test_engines_get_theirs() -> None:
    extra = json.loads(engine_json(_look().settings))["kv_connector_extra_config"]
    assert extra == {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 1216}
