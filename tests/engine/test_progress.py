"""Real NIXL agents: the progress thread of an idle one must leave the core alone."""

from __future__ import annotations

import time
import uuid

import pytest

from antiphon_server.engine.progress import patient

nixl = pytest.importorskip("nixl._api", reason="NIXL is not installed")


def idle_cores(seconds: float = 1.0) -> float:
    """CPU time of this process per second while it sleeps."""
    before = time.process_time()
    time.sleep(seconds)
    return (time.process_time() - before) / seconds


def agent() -> object:
    made: object = nixl.nixl_agent(uuid.uuid4().hex, nixl.nixl_agent_config(num_threads=1))
    return made


def test_idle_agent_leaves_the_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp,sm,self")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    with patient(nixl.nixl_agent):
        idle = agent()
    assert idle_cores() < 0.1
    del idle


def test_bindings_are_put_back() -> None:
    before = nixl.nixlBind.nixlAgentConfig
    with patient(nixl.nixl_agent):
        assert nixl.nixlBind.nixlAgentConfig is not before
    assert nixl.nixlBind.nixlAgentConfig is before


def test_unknown_bindings_are_left_alone() -> None:
    with patient(type("agent", (), {"__module__": "no.such.module"})):
        pass
