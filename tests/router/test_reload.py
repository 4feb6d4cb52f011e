"""SIGHUP: a router takes a changed configuration without dropping a stream."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon_server.router.reload import LIVE, RESTART
from antiphon_server.router.settings import RouterSettings
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
        one, two = it.decode
        body = {**BODY, "stream": True}
        async with it.command.client.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            it.write(two)
            await it.reload()
            it.write(one, two)
            await it.reload()
            assert await it.fleet() == {one: False, two: False}
            assert [line async for line in lines if line][-1] == "data: [DONE]"
        assert not it.command.events("engine.removed")


async def test_engine_that_an_administrator_added_stays(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        one, two = it.decode
        named = {"role": "decode", "url": two}
        added = await it.command.client.post("/admin/workers", json=named, headers=KEY)
        assert added.status_code == 200
        it.write(one, keep=100)
        assert (await it.reload())["changed"] == {"keep": 100.0}
        assert await it.fleet() == {one: False, two: False}


async def test_faulty_file_changes_nothing_and_is_explained(tmp_path: Path) -> None:
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


async def test_faulty_keys_file_changes_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        keys = tmp_path / "keys.yaml"
        keys.write_text("- {tenant: t, hash: nonsense}")
        it.write(it.decode[1], keys_file=keys)
        assert "nonsense" not in str(fault := (await it.reload("config.faulty"))["faults"])
        assert "keys_file" in str(fault)
        assert (await it.command.client.post("/v1/chat/completions", json=BODY)).status_code == 200


async def test_keys_file_is_read_again(tmp_path: Path) -> None:
    from antiphon_server.router.keys import hash_of

    keys = tmp_path / "keys.yaml"
    keys.write_text(f'- {{tenant: t, hash: "{hash_of("ak-first")}"}}')
    async with scene(tmp_path, "--keys-file", str(keys)) as it:

        async def ask(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (
                await it.command.client.post("/v1/chat/completions", json=BODY, headers=headers)
            ).status_code

        assert (await ask("ak-first"), await ask("ak-second")) == (200, 401)
        keys.write_text(f'- {{tenant: t, hash: "{hash_of("ak-second")}"}}')
        await it.reload()
        assert (await ask("ak-first"), await ask("ak-second")) == (401, 200)


async def test_limits_count_at_once_and_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.write(it.decode[0], max_body=10, host="0.0.0.0", shutdown_grace=7)
        assert (await it.reload())["changed"] == {"max_body": 10, "shutdown_grace": 7.0}
        assert it.command.events("config.needs_restart")[0]["settings"] == ["host"]
        assert (await it.command.client.post("/v1/chat/completions", json=BODY)).status_code == 413
        shown = (await it.command.client.get("/admin/config", headers=KEY)).json()["settings"]
        assert (shown["max_body"], shown["host"], shown["admin_key"]) == (10, "127.0.0.1", "***")


async def test_flag_still_wins(tmp_path: Path) -> None:
    async with scene(tmp_path, "--keep", "300") as it:
        it.write(it.decode[0], keep=100, lease_ttl=50)
        assert (await it.reload())["changed"] == {"lease_ttl": 50.0}


def test_every_setting_is_known_to_be_live_or_not() -> None:
    assert not LIVE & RESTART
    assert set(RouterSettings.model_fields) == LIVE | RESTART
