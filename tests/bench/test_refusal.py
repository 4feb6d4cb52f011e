"""A server that answers with an error is not one that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from antiphon_server.bench import engines
from antiphon_server.bench.refusal import plain, refusal, remedy
from antiphon_server.cli import app
from antiphon_server.router.gate.keys import fresh_key, hash_of
from antiphon_server.simulator import Fault

TRACE = str(Path(__file__).parents[1] / "data" / "coding_agents")
TOLD = [
    (
        401,
        "401 Unauthorized: give the right key: a router's with --api-key, the engines' own as "
        "ANTIPHON_ENGINE_KEY",
    ),
    (429, "429 Too Many Requests: it takes no more requests for now: wait, then try again"),
    (500, "500 Internal Server Error: its log, or an engine's behind it, has the cause"),
]


@pytest.fixture(autouse=True)
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "REST_S", 0.0)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def replay(folder: Path, url: str, *more: str) -> Result:
    return CliRunner().invoke(app, ["replay", TRACE, "--router", url, "--out", str(folder), *more])


def sweep(folder: Path, url: str, *more: str) -> Result:
    small = ("--lengths", "300", "--turns", "2", "--new", "40", "--answer", "8", "--repeat", "1")
    return CliRunner().invoke(app, ["bench", "sweep", "--router", url, "--out", str(folder), *small, *more])


def failed(status: int) -> httpx.HTTPStatusError:
    reply = httpx.Response(status, request=httpx.Request("GET", "http://host:8000/metrics"))
    with pytest.raises(httpx.HTTPStatusError) as caught:
        reply.raise_for_status()
    return caught.value


@pytest.mark.parametrize(("status", "told"), TOLD)
def test_status_and_remedy_are_told(status: int, told: str) -> None:
    assert refusal(failed(status)) == f"http://host:8000/metrics answers {told}"
    assert told.endswith(str(remedy(status)))


def test_what_says_nothing_of_a_servers_state_is_left_to_others() -> None:
    assert refusal(failed(404)) is None
    assert plain(failed(404)) == "404 Not Found for /metrics"
    assert refusal(httpx.ConnectError("refused")) is None
    assert (plain(httpx.ConnectError("refused")), plain(failed(599))) == ("refused", "599 for /metrics")


@pytest.mark.parametrize(("status", "told"), TOLD)
def test_a_server_that_refuses_is_not_taken_for_none(
    simulated_stack: Any, tmp_path: Path, status: int, told: str
) -> None:
    stack = simulated_stack()
    for path in ("/v1/models", "/metrics"):
        stack.decode.faults.add(Fault(kind="status", code=status, path=path, times=100))
    for result, path in (
        (replay(tmp_path, stack.decode_url), "/v1/models"),
        (sweep(tmp_path, stack.decode_url), "/metrics"),
    ):
        assert result.exit_code == 2, result.output
        assert f"{stack.decode_url}{path} answers {told}" in result.output
        assert "no router answers" not in result.output
        assert "developer.mozilla.org" not in result.output


@pytest.mark.parametrize(("status", "told"), TOLD)
def test_an_engine_that_refuses_is_named(
    simulated_stack: Any, tmp_path: Path, status: int, told: str
) -> None:
    stack = simulated_stack()
    stack.prefill.faults.add(Fault(kind="status", code=status, path="/metrics", times=10_000))
    for result in (replay(tmp_path, stack.router), sweep(tmp_path, stack.router)):
        assert result.exit_code == 2, result.output
        assert f"{stack.prefill_url}/metrics answers {told}" in result.output


@pytest.mark.parametrize(("status", "told"), TOLD)
def test_turns_that_are_refused_name_the_remedy(
    simulated_stack: Any, tmp_path: Path, status: int, told: str
) -> None:
    stack = simulated_stack()
    stack.decode.faults.add(Fault(kind="status", code=status, path="/v1/chat", times=100))
    result = replay(tmp_path, f"plain={stack.decode_url}", "--scale", "64")
    assert result.exit_code == 2, result.output
    assert f"Error code: {status}" in result.output
    assert result.output.rstrip().endswith(told.partition(": ")[2])


def test_a_closed_router_is_measured_with_its_key(simulated_stack: Any, tmp_path: Path) -> None:
    key = fresh_key()
    (tmp_path / "keys.yaml").write_text(f"- tenant: own\n  hash: {hash_of(key)}\n")
    router = simulated_stack(router={"keys_file": tmp_path / "keys.yaml"}).router
    small = ("--scale", "64", "--conversations", "1", "--turns", "2", "--longest-answer", "8")
    for run, more in ((replay, ("--time", "none", "--no-warm-up", *small)), (sweep, ())):
        refused = run(tmp_path, router, *more)
        assert refused.exit_code == 2, refused.output
        assert "/v1/models answers 401 Unauthorized: give the right key" in refused.output
        result = run(tmp_path, router, *more, "--api-key", key)
        assert result.exit_code == 0, result.output
