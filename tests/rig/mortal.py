"""Engines that a test may hold still, kill and start again, each on its own port, behind routers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from antiphon_server.stack import ports
from antiphon_server.stack.command import ProcessSpec, render
from antiphon_server.stack.models import resolve
from antiphon_server.stack.process import read_tail
from antiphon_server.stack.settings import Override, StackSettings
from rig import counters, fleet, series

NURSERY = Path(__file__).with_name("nursery.py")
START_S = 300.0
ADMIN_KEY = "admin-key-of-the-tests"
LEASE_S = 15
"""Of decode's blocks: what nobody may release ends within a test."""
UNREAD_S = 10
"""Of prefill's blocks, while nobody has read them."""
SMALL = ("--num-gpu-blocks-override", "1024", "--max-num-batched-tokens", "64")
"""Little memory; and a prompt takes many steps, so that engines can be met in the middle of one."""
TCP = {"UCX_TLS": "tcp,self"}
"""As between machines. Through shared memory an engine that is held could be read all the same."""
UCX_ABORT = "Fatal: unexpected error: Endpoint timeout"
"""UCX of NIXL 1.5.1 ends the process, now and then, when it meets a peer that has died and come back."""
DYING_S = 30.0
"""For an API server to end once its core is gone."""
_HTTP = httpx.Client(timeout=60, trust_env=False, headers={"connection": "close"})


class Nursery:
    """See :mod:`rig.nursery`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(NURSERY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
            start_new_session=True,
        )
        self._hear()

    def fork(self, spec: ProcessSpec) -> int:
        """Pid of the engine's API server."""
        argv = spec.argv[spec.argv.index("-m") + 2 :]
        return int(self._ask({"argv": argv, "env": dict(spec.env), "log": str(spec.log)}))

    def reap(self, pid: int) -> None:
        """Until nothing of the engine is left."""
        self._ask({"reap": pid})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _ask(self, what: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return self._hear()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or "null")


class Engine:
    """One real engine: an API server and, below it, the core that schedules and computes."""

    def __init__(self, nursery: Nursery, spec: ProcessSpec) -> None:
        self.spec = spec
        self.url = spec.url
        self.role = spec.role.value
        self._nursery = nursery
        self._pid: int | None = None
        self.start()

    def __repr__(self) -> str:
        return self.spec.name

    @property
    def runs(self) -> bool:
        """Was started, and both of its processes live."""
        if self._pid is None:
            return False
        try:
            api = self.api
            states = [process.status() for process in (api, *api.children())]
        except psutil.NoSuchProcess:  # it ended, perhaps while we looked
            return False
        return len([state for state in states if state != psutil.STATUS_ZOMBIE]) >= 2

    def failure(self) -> str | None:
        """The end of its log, where it died and nobody had killed it."""
        return None if self._pid is None or self.runs else read_tail(self.spec.log)[-4000:]

    @property
    def api(self) -> psutil.Process:
        assert self._pid is not None, f"{self} is dead"
        return psutil.Process(self._pid)

    @property
    def core(self) -> psutil.Process:
        return next(child for child in self.api.children() if "EngineCore" in child.name())

    def start(self) -> None:
        """Begin a life; :meth:`await_up` waits for it. What is left of the last one ends."""
        if self._pid is not None:
            self.kill()
        self._pid = self._nursery.fork(self.spec)

    def await_up(self) -> None:
        """Until it answers."""

        def up() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return _HTTP.get(self.spec.health).is_success
            return False

        if not counters.eventually(up, bool, START_S):
            raise RuntimeError(f"{self} does not start: {read_tail(self.spec.log)[-2000:]}")

    def kill(self) -> None:
        """``kill -9`` of all its processes at once."""
        assert self._pid is not None, f"{self} is dead"
        with contextlib.suppress(ProcessLookupError):  # it died by itself
            os.killpg(self._pid, signal.SIGKILL)
        self._nursery.reap(self._pid)
        self._pid = None

    def crash(self) -> None:
        """``kill -9`` of its core alone, as if an assertion had failed; its API server notices and ends."""
        assert self._pid is not None, f"{self} is dead"
        self.core.kill()
        counters.eventually(lambda: self.api.status(), lambda now: now == psutil.STATUS_ZOMBIE, DYING_S)
        self.kill()

    @contextlib.contextmanager
    def core_held(self) -> Iterator[None]:
        """Its API server answers, and nothing is scheduled, computed or transferred."""
        with _held(self.core):
            yield

    @contextlib.contextmanager
    def api_held(self) -> Iterator[None]:
        """Requests arrive and are not read."""
        with _held(self.api):
            yield

    @property
    def running(self) -> int:
        return round(series.value(self.url, "vllm:num_requests_running"))

    @property
    def waiting(self) -> int:
        """Requests that wait, those for their KV included."""
        return round(series.value(self.url, "vllm:num_requests_waiting"))

    @property
    def finished(self) -> int:
        """Requests that came to their end; those that were cancelled did not."""
        return round(series.value(self.url, "vllm:request_success_total", finished_reason="length"))

    @property
    def pinned(self) -> int:
        """Finished requests whose blocks it keeps for a reader."""
        return int(_HTTP.post(f"{self.url}/antiphon/leases", json={}).raise_for_status().json()["pinned"])


@contextlib.contextmanager
def _held(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@dataclass(frozen=True)
class Mortals:
    """Two engines of each role. ``reuses`` and ``appends``: routers that take that path wherever they can."""

    prefill: tuple[Engine, Engine]
    decode: tuple[Engine, Engine]
    reuses: Router
    appends: Router

    @property
    def engines(self) -> tuple[Engine, ...]:
        return (*self.prefill, *self.decode)

    @property
    def failures(self) -> dict[str, str]:
        """Engines that died and nobody had killed them, with the end of their logs."""
        return {str(engine): end for engine in self.engines if (end := engine.failure()) is not None}

    @property
    def ended_by_ucx(self) -> list[str]:
        """Those of :attr:`failures` that are not ours."""
        return [name for name, end in self.failures.items() if UCX_ABORT in end]


@dataclass(frozen=True)
class Router:
    """A router process."""

    url: str

    def workers(self) -> dict[str, dict[str, Any]]:
        """What it knows of each engine, by URL."""
        listed = self._admin("GET", "").json()["workers"]
        return {worker["url"]: worker for worker in listed}

    def in_flight(self, engine: Engine) -> int:
        """Legs of the engine."""
        return int(self.workers()[engine.url]["in_flight"])

    def turns_in_flight(self) -> int:
        return round(series.value(self.url, "antiphon_turns_in_flight"))

    def frontiers(self) -> int:
        return round(series.value(self.url, "antiphon_frontiers"))

    def count(self, name: str, **labels: str) -> int:
        return round(series.value(self.url, name, **labels))

    @contextlib.contextmanager
    def only(self, *engines: Engine) -> Iterator[None]:
        """Turns that begin inside go to these; the others are drained."""
        others = [w for w in self.workers().values() if w["url"] not in {e.url for e in engines}]
        named = [{"role": worker["role"], "url": worker["url"]} for worker in others]
        for one in named:
            self._admin("POST", "/drain", one)
        try:
            yield
        finally:
            for one in named:
                self._admin("POST", "/undrain", one)

    def close(self, conversation: str) -> None:
        """End a conversation."""
        _HTTP.delete(f"{self.url}/v1/conversations/{conversation}")

    def _admin(self, method: str, path: str, body: Any = None) -> httpx.Response:
        url, headers = f"{self.url}/admin/workers{path}", {"authorization": f"Bearer {ADMIN_KEY}"}
        return _HTTP.request(method, url, json=body, headers=headers).raise_for_status()


def settings(log_dir: Path) -> StackSettings:
    """Two engines of each role."""
    return StackSettings(
        model="tiny",
        prefill=2,
        decode=2,
        router=False,
        threshold=1,
        decode_ttl=LEASE_S,
        log_dir=log_dir,
        max_model_len=8192,
        overrides={
            "prefill": Override(flags=SMALL, env=TCP, kv_extra={"kv_lease_duration": UNREAD_S}),
            "decode": Override(flags=SMALL, env=TCP),
        },
    )


@contextlib.contextmanager
def mortals(log_dir: Path) -> Iterator[Mortals]:
    """Boot them; end all at the end."""
    wanted = settings(log_dir)
    log_dir.mkdir(parents=True, exist_ok=True)
    specs = render(wanted, ports.allocate(wanted), resolve(wanted.model, os.environ), log_dir, 2)
    with contextlib.ExitStack() as stack:
        nursery = Nursery(specs[0].env)
        stack.callback(nursery.close)
        engines = [Engine(nursery, spec) for spec in specs]
        for engine in engines:
            engine.await_up()
        routers = [
            stack.enter_context(router(engines, path, log_dir / f"router-{path}.log"))
            for path in ("reuse", "append")
        ]
        yield Mortals((engines[0], engines[1]), (engines[2], engines[3]), *routers)


@contextlib.contextmanager
def router(
    engines: Sequence[Engine], path: str, log: Path, more: Mapping[str, str] | None = None
) -> Iterator[Router]:
    """A router that takes ``path`` wherever it can. ``more``: of its environment."""
    urls = {role: [e.url for e in engines if e.role == role] for role in ("prefill", "decode")}
    env = {
        "ANTIPHON_PATHS": path,
        "ANTIPHON_ADMIN_KEY": ADMIN_KEY,
        "ANTIPHON_PROBE_INTERVAL": "0.5",
        "ANTIPHON_LEASE_TTL": str(LEASE_S),
        "ANTIPHON_RENEW_INTERVAL": "2",
        "ANTIPHON_LEASE_MARGIN": "6",
        # A held engine is not a dead one; and a conversation stays where it was placed.
        "ANTIPHON_PROBE_TIMEOUT": "60",
        "ANTIPHON_LOAD_BOUND": "1000",
        **(more or {}),
    }
    with fleet.router(urls["prefill"], urls["decode"], log, env) as url:
        yield Router(url)


__all__ = ["LEASE_S", "UNREAD_S", "Engine", "Mortals", "Router", "mortals", "router"]
