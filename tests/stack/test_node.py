"""Where a machine is, and what engines that meet there are told."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon_server.stack import node
from antiphon_server.stack.command import engine_of
from antiphon_server.stack.models import Model
from antiphon_server.stack.ports import EnginePorts
from antiphon_server.stack.settings import Preset, Role, StackSettings
from antiphon_server.stack.validate import ValidationError
from rig import hosts

MODEL = Model("m", "/models/m", local=True, context=4096)
ETH = {"127.0.0.1": "lo", "::1": "lo", "10.0.0.7": "eth0", "fe80::1": "eth0"}


@pytest.fixture
def unrouted(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A host without a default route; the addresses it has."""
    own = dict(ETH)
    monkeypatch.setattr(node, "_leaving_for", lambda elsewhere: None)
    monkeypatch.setattr(node, "addresses", lambda: own)
    return own


def env_of(**more: str | Preset | None) -> dict[str, str]:
    settings = StackSettings(router=False, **more)  # type: ignore[arg-type]
    return dict(engine_of(settings, MODEL, Path(), Role.DECODE, 0, EnginePorts(8200, 5600), 1).env)


def test_the_address_is_where_the_default_route_leaves_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_leaving_for", {"192.0.2.1": "10.0.0.7", "2001:db8::1": "fd00::7"}.get)
    assert node.own_address() == "10.0.0.7"
    monkeypatch.setattr(node, "_leaving_for", {"2001:db8::1": "fd00::7"}.get)
    assert node.own_address() == "fd00::7"


def test_without_a_default_route_it_is_the_only_one(unrouted: dict[str, str]) -> None:
    assert node.own_address() == "10.0.0.7"
    unrouted["10.1.0.7"] = "eth1"
    with pytest.raises(ValidationError, match=r"it has 10\.0\.0\.7, 10\.1\.0\.7: give the one others reach"):
        node.own_address()
    for address in ("10.0.0.7", "10.1.0.7"):
        del unrouted[address]
    with pytest.raises(ValidationError, match="it has none but loopback"):
        node.own_address()


def test_on_a_host_without_a_route_auto_finds_its_address_and_interface() -> None:
    if reason := hosts.missing():
        pytest.skip(reason)
    show = (
        "from antiphon_server.stack.node import placed; from antiphon_server.stack.settings import *;"
        "own = placed(StackSettings(address='auto'), {}); print(own.address, own.interface)"
    )
    with hosts.two_hosts() as (host, _), host.inside():
        ran = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [host.address, "cable"]


def test_a_name_becomes_a_number_ipv4_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_: object, **__: object) -> list[tuple[object, ...]]:
        four = (socket.AF_INET, 1, 6, "", ("10.0.0.7", 0))
        return [(socket.AF_INET6, 1, 6, "", ("fd00::7", 0, 0, 0)), four, (*four[:4], ("10.0.0.8", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert node.resolved("p5-node-3") == "10.0.0.7"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both()[:1])
    assert node.resolved("p5-node-3") == "fd00::7"


def test_placing_settings_twice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "addresses", lambda: ETH)
    once = node.placed(StackSettings(address="10.0.0.7"), {})
    assert (once.address, once.interface) == ("10.0.0.7", "eth0")
    assert node.placed(once, {}) == once
    assert node.placed(StackSettings(), {}) == StackSettings()


def test_the_environment_may_name_the_interfaces() -> None:
    own = node.placed(StackSettings(address="10.0.0.7"), {"UCX_NET_DEVICES": "bond0,bond1"})
    assert own.interface == "bond0,bond1"


@pytest.mark.parametrize("address", [None, "127.0.0.1", "127.0.1.1", "::1"])
def test_engines_on_loopback_share_memory(address: str | None) -> None:
    env = env_of(address=address, interface="eth0")
    assert (env["UCX_TLS"], env["UCX_NET_DEVICES"]) == ("tcp,sm,self", "lo")


def test_engines_at_an_address_speak_tcp_over_its_interface() -> None:
    env = env_of(address="10.0.0.7", interface="eth0")
    assert (env["UCX_TLS"], env["UCX_NET_DEVICES"]) == ("tcp,self", "eth0")
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.7"
    assert "UCX_NET_DEVICES" not in env_of(address="10.9.9.9")


@pytest.mark.parametrize("preset", [Preset.GPU, Preset.EFA])
@pytest.mark.parametrize("address", [None, "10.0.0.7"])
def test_gpus_are_left_every_transport(preset: Preset, address: str | None) -> None:
    env = env_of(preset=preset, address=address, interface="eth0")
    assert not any(name.startswith("UCX_") for name in env)


def test_what_it_listens_on_is_not_where_it_is_met() -> None:
    settings = StackSettings(address="10.0.0.7", engine_host="0.0.0.0")
    spec = engine_of(settings, MODEL, Path(), Role.DECODE, 0, EnginePorts(8200, 5600), 1)
    assert spec.argv[spec.argv.index("--host") + 1] == "0.0.0.0"
    assert spec.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.7"
    assert spec.url == "http://10.0.0.7:8200"
    six = engine_of(StackSettings(address="fd00::7"), MODEL, Path(), Role.DECODE, 0, EnginePorts(8200, 0), 1)
    assert six.url == "http://[fd00::7]:8200"


def test_an_engine_that_others_call_and_cannot_meet_is_noted() -> None:
    assert "--address auto" in str(node.confined(StackSettings(engine_host="0.0.0.0")))
    assert node.confined(StackSettings(engine_host="0.0.0.0", address="10.0.0.7")) is None
    assert node.confined(StackSettings()) is None


@pytest.mark.parametrize(
    ("granted", "expected"),
    [
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("150000 100000", 2),
        ("max 100000", 64),
        ("odd", 64),
        (None, 64),
    ],
)
def test_cpus_are_those_that_a_container_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, granted: str | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    limit = tmp_path / "cpu.max"
    if granted is not None:
        limit.write_text(granted + "\n")
    assert node.cores(limit) == expected
