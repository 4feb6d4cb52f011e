"""Handles that are of no use, or that point nowhere: said aloud, while turns go on."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from antiphon_server.protocol import HANDLE_KEY, Info
from antiphon_server.router.fleet.breaker import Breaker, BreakerPolicy
from antiphon_server.router.fleet.worker import Engine, Role, Worker
from antiphon_server.router.metrics import Metrics
from antiphon_server.router.turn import handles
from antiphon_server.router.turn.handles import Handles
from antiphon_server.simulator.handle import write_handle

Message = dict[str, Any]
FOLLOW: Message = {"role": "user", "content": "And the next ones?"}


def worker(role: Role, url: str) -> Worker:
    return Worker(Engine(url, role, Breaker(BreakerPolicy())))


def life(epoch: str) -> Info:
    lease = {"decode": 60.0, "prefill": 30.0, "longest": 600.0}
    names = dict.fromkeys(("engine_id", "model", "vllm", "nixl"), "x")
    counts = dict.fromkeys(("block_size", "tensor_parallel", "data_parallel", "threshold", "capacity"), 16)
    given = {"protocol": 1, "epoch": epoch, "role": "decode", "kv_groups": [], "leases": lease, "reuse": True}
    return msgspec.convert(names | counts | given, Info)


def words(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [record.__dict__ for record in caplog.records if record.message == event]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("lost", ["remote_request_id", HANDLE_KEY])
async def test_engine_that_names_its_keys_otherwise_is_told_and_served(
    start: Any,
    opening: list[Message],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lost: str,
    stream: bool,
) -> None:
    # https://github.com/llm-d/llm-d-router/issues/2140, https://github.com/llm-d/llm-d-router/issues/2831
    rig = await start()

    def renamed(settings: Any, *given: Any) -> Any:
        handle = write_handle(settings, *given)
        if settings.role == "decode":
            handle[f"their_{lost}"] = handle.pop(lost)
        return handle

    monkeypatch.setattr("antiphon_server.simulator.engine.write_handle", renamed)
    history = opening
    for _ in range(3):
        answer = await rig.ask(history, conversation="c", stream=stream)
        assert answer.path == "cold"
        history = [*history, answer.message, FOLLOW]
    assert rig.count("antiphon_handles_total", event="faulty") == 3
    assert rig.count("antiphon_handles_total", event="captured") == 0
    assert rig.count("antiphon_handles_total", event="missing") == 0
    (told,) = words(caplog, "handle.faulty")
    assert (told["worker"], told["missing"]) == (rig.state.workers.decode[0].url, lost)


async def test_handles_that_name_only_their_own_machine_are_told_once(
    start: Any,
    opening: list[Message],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # https://github.com/vllm-project/vllm/issues/27083
    rig = await start()
    monkeypatch.setattr(handles, "_apart", lambda one, other: True)
    history = opening
    for path in ("cold", "reuse"):
        answer = await rig.ask(history, conversation="c")
        assert answer.path == path
        history = [*history, answer.message, FOLLOW]
    assert rig.count("antiphon_handles_total", event="loopback") == 4  # one of each leg
    told = {record["worker"]: record["remote_host"] for record in words(caplog, "handle.loopback")}
    assert told == {each.url: "127.0.0.1" for each in rig.state.workers}
    assert len(words(caplog, "handle.loopback")) == 2


@pytest.mark.parametrize(
    ("host", "holder", "reader", "counted"),
    [
        ("localhost", "http://10.0.0.1:8000", "http://10.0.0.2:8000", True),
        ("127.0.1.1", "http://10.0.0.1:8000", "http://10.0.0.2:8000", True),
        ("::1", "http://d0:8000", "http://p0:8000", True),
        ("0.0.0.0", "http://d0:8000", "http://p0:8000", True),
        ("localhost", "http://127.0.0.1:8000", "http://10.0.0.2:8000", True),
        ("10.0.0.1", "http://10.0.0.1:8000", "http://10.0.0.2:8000", False),
        ("d0", "http://d0:8000", "http://p0:8000", False),
        (None, "http://d0:8000", "http://p0:8000", False),
        ("localhost", "http://10.0.0.1:8000", "http://10.0.0.1:8001", False),
        ("localhost", "http://127.0.0.1:8000", "http://localhost:8001", False),
    ],
)
def test_loopback_is_no_address_for_another_machine(
    host: object, holder: str, reader: str, counted: bool
) -> None:
    metrics = Metrics()
    Handles(metrics.handles).look(host, worker("decode", holder), [worker("prefill", reader)])
    labels = {"event": "loopback"}
    assert (metrics.registry.get_sample_value("antiphon_handles_total", labels) == 1.0) is counted


def test_next_life_of_an_engine_is_told_of_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    judge = Handles(Metrics().handles)
    holder = worker("decode", "http://d0:8000")
    holder.engine.info = life("1")
    for _ in range(2):
        assert not judge.usable(None, None, holder)
    assert len(words(caplog, "handle.faulty")) == 1
    holder.engine.info = life("2")
    assert not judge.usable(None, None, holder)
    assert len(words(caplog, "handle.faulty")) == 2
