"""Lease calls over several worker ranks, and who may make them. Needs vLLM installed, boots no engine."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

pytestmark = pytest.mark.engine

pytest.importorskip("vllm", reason="vLLM is not installed")

from antiphon_server.engine import info  # noqa: E402
from antiphon_server.engine.middleware import BODY_LIMIT, AntiphonMiddleware  # noqa: E402
from antiphon_server.protocol import LEASES_PATH, LeaseReply, LeaseRequest, Renewal  # noqa: E402


class Ranks:
    """An engine client whose ranks grant what they are told to."""

    vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=1))

    def __init__(self, *granted: dict[str, float | None], pinned: int = 0) -> None:
        self._granted = granted
        self._pinned = pinned
        self.calls: list[dict[str, Any]] = []

    async def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        assert method == "antiphon_leases"
        self.calls.append(kwargs)
        return [{"granted": granted, "pinned": self._pinned + n} for n, granted in enumerate(self._granted)]


async def test_lease_ends_with_its_shortest_rank() -> None:
    ranks = Ranks({"a": 60.0}, {"a": 40.0}, pinned=3)
    before = time.perf_counter()
    reply = await info.move_leases(ranks, LeaseRequest(renew=[Renewal("a", 60.0)]))
    deadline = reply.leases["a"]
    assert isinstance(deadline, float)
    assert before + 40 <= deadline <= time.perf_counter() + 40
    assert reply.pinned == 4


async def test_lease_that_one_rank_does_not_know_is_unknown() -> None:
    ranks = Ranks({"a": 60.0, "b": 0.0}, {"a": None, "b": 0.0})
    asked = LeaseRequest(renew=[Renewal("a", 60.0)], release=["b"], legs=["c"])
    reply = await info.move_leases(ranks, asked)
    assert reply.leases["a"] == "unknown"
    assert isinstance(reply.leases["b"], float)
    assert ranks.calls == [{"renew": [("a", 60.0)], "release": ["b"], "legs": ["c"]}]


class Engines:
    """An engine client of several data-parallel engines, each with ranks of its own."""

    vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=2))

    def __init__(self, *engines: Ranks) -> None:
        self.engine_core = self
        self._engines = engines

    async def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        raise AssertionError("brings the first engine's answers only")

    async def call_utility_all_async(
        self, utility: str, method: str, limit: float | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[list[dict[str, Any]]]:
        assert utility == "collective_rpc"
        return [await engine.collective_rpc(method, kwargs) for engine in self._engines]


async def test_lease_of_any_data_parallel_engine_is_known() -> None:
    engines = Engines(
        Ranks({"a": 60.0, "b": None, "c": None}, pinned=2), Ranks({"a": None, "b": 40.0, "c": None}, pinned=3)
    )
    renew = [Renewal(name, 60.0) for name in "abc"]
    reply = await info.move_leases(engines, LeaseRequest(renew=renew))
    assert isinstance(reply.leases["a"], float)
    assert isinstance(reply.leases["b"], float)
    assert reply.leases["c"] == "unknown"
    assert reply.pinned == 5


async def post(ranks: Ranks, body: bytes, key: str | None, given: str | None) -> tuple[int, bytes]:
    """Status and body that the middleware answers to a lease call."""

    async def passed_on(*_: Any) -> None:
        raise AssertionError("a lease call reached vLLM")

    args = SimpleNamespace(api_key=[key] if key else None)
    state = SimpleNamespace(args=args, engine_client=ranks)
    scope = {
        "type": "http",
        "method": "POST",
        "path": LEASES_PATH,
        "headers": [(b"authorization", f"Bearer {given}".encode())] if given else [],
        "app": SimpleNamespace(state=state),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await AntiphonMiddleware(passed_on)(scope, receive, send)
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("given", [None, "", "wrong", "key2"])
async def test_lease_call_without_the_engines_key_is_refused(given: str | None) -> None:
    ranks = Ranks({"a": 0.0})
    status, body = await post(ranks, b'{"release": ["a"]}', "key", given)
    assert status == 401
    assert b"API key" in body
    assert not ranks.calls


@pytest.mark.parametrize(("key", "given"), [("key", "key"), (None, None)])
async def test_lease_call_with_the_engines_key_is_served(
    key: str | None, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    status, body = await post(Ranks({"a": 0.0}), b'{"release": ["a"]}', key, given)
    assert status == 200
    assert set(msgspec.json.decode(body, type=LeaseReply).leases) == {"a"}


async def test_key_of_the_environment_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "key")
    assert (await post(Ranks({}), b"{}", None, None))[0] == 401
    assert (await post(Ranks({}), b"{}", None, "key"))[0] == 200


async def test_request_without_the_protocol_header_sees_a_stock_engine() -> None:
    """Its ``send`` is passed on as it is, so nothing can be added to the stream."""
    seen: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(send)

    async def send(message: dict[str, Any]) -> None:
        raise AssertionError("nothing is sent here")

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    await AntiphonMiddleware(application)(scope, cast("Any", None), send)
    assert seen == [send]


async def test_lease_call_that_is_too_large_is_refused() -> None:
    status, body = await post(Ranks({}), b" " * (BODY_LIMIT + 1), None, None)
    assert status == 400
    assert b"send fewer leases" in body
