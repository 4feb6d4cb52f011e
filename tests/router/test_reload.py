"""SIGHUP: a router takes a changed configuration without dropping a stream."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon_server.router.config.config import load
from antiphon_server.router.config.explain import plain
from antiphon_server.router.config.reload import LIVE, Reloaded, Reloads
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.gate.keys import hash_of
from antiphon_server.simulator import Settings, SimulatedCluster, SimulatedEngine, serve
from rig.command import Command, running

KEY = {"Authorization": "Bearer hush-hush"}
BODY: dict[str, Any] = {
    "model": "simulated",
    "messages": [{"role": "user", "content": "Name the first letters, please, and take your time about it."}],
}


@dataclass
class Scene:
    """A router with a file of settings, on a prefill engine and the first of two decode engines."""

    command: Command
    file: Path
    prefill: str
    decode: tuple[str, str]
    engines: tuple[SimulatedEngine, SimulatedEngine]

    def write(self, *decode: str, **more: Any) -> None:
        lines = [f"prefill: [{self.prefill}]", f"decode: [{', '.join(decode)}]", "calibrate: false"]
        self.file.write_text("\n".join([*lines, *(f"{name}: {value}" for name, value in more.items())]))

    async def reload(self, event: str = "config.reloaded") -> dict[str, Any]:
        before = len(self.command.events(event))
        self.command.signal(signal.SIGHUP)
        return await self.command.told(event, before)

    async def fleet(self) -> dict[str, bool]:
        """Whether each decode engine is draining."""
        reply = await self.command.client.get("/admin/workers", headers=KEY)
        return {w["url"]: w["draining"] for w in reply.json()["workers"] if w["role"] == "decode"}


@contextlib.asynccontextmanager
async def scene(folder: Path, *arguments: str, **decode: Any) -> AsyncIterator[Scene]:
    cluster = SimulatedCluster()
    prefill = SimulatedEngine(Settings(role="prefill", threshold=0), cluster=cluster)
    one, two = (SimulatedEngine(Settings(role="decode", **decode), cluster=cluster) for _ in range(2))
    async with serve(prefill) as p, serve(one) as d1, serve(two) as d2:
        file = folder / "router.yaml"
        file.write_text(f"prefill: [{p}]\ndecode: [{d1}]\ncalibrate: false\n")
        environ = {"ANTIPHON_ADMIN_KEY": "hush-hush", "ANTIPHON_CONFIG": str(file)}
        async with running(*arguments, environ=environ) as command:
            yield Scene(command, file, p, (d1, d2), (one, two))


async def test_stream_survives_an_engine_that_comes_and_its_own_that_goes(tmp_path: Path) -> None:
    async with scene(tmp_path, answer_tokens=60, decode_rate=40.0) as it:
        client = it.command.client
        one, two = it.decode
        async with client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            it.write(two)
            await it.reload()
            assert await it.fleet() == {one: True, two: False}
            turns = len(legs(it.engines[0]))
            assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200
            assert (len(legs(it.engines[0])), len(legs(it.engines[1]))) == (turns, 1)
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        await it.command.told("engine.removed")
        assert await it.fleet() == {two: False}
        assert it.command.process.returncode is None


def legs(engine: SimulatedEngine) -> list[Any]:
    return [request for request in engine.requests if request.path.startswith("/v1/")]


async def test_engine_that_comes_back_while_it_leaves_stays(tmp_path: Path) -> None:
    async with scene(tmp_path, answer_tokens=60, decode_rate=40.0) as it:
        client = it.command.client
        one, two = it.decode
        async with client.stream("POST", "/v1/chat/completions", json={**BODY, "stream": True}) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            it.write(two)
            await it.reload()
            it.write(one, two)
            await it.reload()
            assert await it.fleet() == {one: False, two: False}
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200
        assert await it.fleet() == {one: False, two: False}
        it.write(two)
        await it.reload()
        removed = await it.command.told("engine.removed")
        assert removed["time"] >= it.command.events("config.reloaded")[2]["time"]


async def test_faulty_file_is_explained_and_the_process_goes_on(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        one, two = it.decode
        it.write(two, kep=3, max_body="no")
        faults = (await it.reload("config.faulty"))["faults"]
        assert len(faults) == 2
        assert "did you mean keep" in faults[0] + faults[1]
        assert await it.fleet() == {one: False}
        it.write(one, two)
        await it.reload()
        assert await it.fleet() == {one: False, two: False}


class File:
    """A rig's settings as a file, and their reload without a signal."""

    def __init__(self, rig: Any, folder: Path, flags: dict[str, Any] | None = None) -> None:
        self.path = folder / "router.yaml"
        self._state = rig.state
        self._reloads = Reloads(rig.state, lambda: load(flags or {}, {}, self.path))

    async def reload(self, **change: Any) -> Reloaded:
        now = {**plain(self._state.settings), "admin_key": "hush-hush", **change}
        self.path.write_text(
            yaml.safe_dump({name: value for name, value in now.items() if value is not None})
        )
        return await self._reloads.reload()


@pytest.fixture
async def rig(start: Any) -> Any:
    return await start(router={"admin_key": "hush-hush", "calibrate": False})


async def test_engine_that_an_administrator_added_stays(rig: Any, tmp_path: Path) -> None:
    urls = [worker.url for worker in rig.state.workers.decode]
    await rig.state.workers.add("decode", "http://127.0.0.9:1")
    reloaded = await File(rig, tmp_path).reload(keep=100, decode=urls)
    assert reloaded == Reloaded(changed=("keep",))
    assert [worker.url for worker in rig.state.workers.decode] == [*urls, "http://127.0.0.9:1"]


async def test_faulty_file_changes_nothing(rig: Any, tmp_path: Path) -> None:
    before = rig.state.settings
    reloaded = await File(rig, tmp_path).reload(keep=100, port=-1, decode=["http://127.0.0.9:1"])
    assert len(reloaded.faults) == 1
    assert rig.state.settings is before
    assert len(rig.state.workers.decode) == 1


async def test_faulty_keys_file_changes_nothing(rig: Any, tmp_path: Path, opening: Any) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("- {tenant: t, hash: nonsense}")
    reloaded = await File(rig, tmp_path).reload(keys_file=str(keys), keep=100)
    assert "keys_file" in reloaded.faults[0]
    assert "nonsense" not in reloaded.faults[0]
    assert rig.state.settings.keep != 100
    await rig.ask(opening)


async def test_keys_file_is_read_again(rig: Any, tmp_path: Path) -> None:
    async def ask(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        reply = await rig.client.post("/v1/chat/completions", json=BODY, headers=headers)
        return int(reply.status_code)

    keys, file = tmp_path / "keys.yaml", File(rig, tmp_path)
    keys.write_text(f'- {{tenant: t, hash: "{hash_of("ak-first")}"}}')
    assert (await file.reload(keys_file=str(keys))).changed == ("keys_file",)
    assert (await ask("ak-first"), await ask("ak-second")) == (200, 401)
    keys.write_text(f'- {{tenant: t, hash: "{hash_of("ak-second")}"}}')
    assert await file.reload(keys_file=str(keys)) == Reloaded()
    assert (await ask("ak-first"), await ask("ak-second")) == (401, 200)


async def test_limits_count_at_once_and_what_needs_a_restart_is_named(rig: Any, tmp_path: Path) -> None:
    reloaded = await File(rig, tmp_path).reload(max_body=10, host="0.0.0.0", shutdown_grace=7)
    assert set(reloaded.changed) == {"max_body", "shutdown_grace"}
    assert reloaded.restart == ("host",)
    assert (await rig.client.post("/v1/chat/completions", json=BODY)).status_code == 413
    shown = (await rig.client.get("/admin/config", headers=KEY)).json()["settings"]
    assert (shown["max_body"], shown["host"], shown["admin_key"]) == (10, "127.0.0.1", "***")


async def test_retention_counts_at_once(rig: Any, tmp_path: Path, opening: Any) -> None:
    await rig.ask(opening, conversation="c")
    assert len(await rig.state.store.held()) == 1
    await File(rig, tmp_path).reload(keep=5)
    rig.clock.time += 6
    await rig.state.leases.renew()
    assert await rig.state.store.held() == []


async def test_fewer_responses_are_remembered_at_once(rig: Any, tmp_path: Path) -> None:
    async def respond() -> None:
        body = {"model": "simulated", "input": "Name the first letters.", "max_output_tokens": 4}
        assert (await rig.client.post("/v1/responses", json=body)).status_code == 200

    for _ in range(3):
        await respond()
    assert len(rig.state.responses) == 3
    assert (await File(rig, tmp_path).reload(responses=1)).changed == ("responses",)
    await respond()
    assert len(rig.state.responses) == 1


async def test_flag_still_wins(rig: Any, tmp_path: Path) -> None:
    reloaded = await File(rig, tmp_path, {"keep": "480"}).reload(keep=100, lease_ttl=50)
    assert reloaded.changed == ("lease_ttl",)


RESTART = frozenset(
    {
        "breaker_failures",
        "breaker_longest",
        "breaker_pause",
        "breaker_ratio",
        "breaker_window",
        "calibrate",
        "conversations",
        "discover_account",
        "discover_api",
        "discover_decode",
        "discover_namespace",
        "discover_port",
        "discover_prefill",
        "discover_scheme",
        "engine_key",
        "head_timeout",
        "host",
        "known",
        "max_header_bytes",
        "max_path",
        "pair_failures",
        "port",
        "pressure_interval",
        "pull_grace",
        "release_on_stop",
        "store",
        "store_prefix",
        "store_timeout",
        "tenant_metrics",
        "tls_cert",
        "tls_key",
    }
)
"""Settings that only a restart changes."""


def test_every_setting_is_known_to_be_live_or_not() -> None:
    assert not LIVE & RESTART
    assert set(RouterSettings.model_fields) == LIVE | RESTART
