"""A running stack: engines and router of one machine, started together and stopped together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx

from antiphon_server.stack import validate
from antiphon_server.stack.command import ProcessSpec, render, router_of
from antiphon_server.stack.models import Model, resolve
from antiphon_server.stack.models.cache import cache_folder
from antiphon_server.stack.node import cores, placed
from antiphon_server.stack.ports import allocate, free, search
from antiphon_server.stack.process import Process, read_tail
from antiphon_server.stack.settings import Role, StackSettings
from antiphon_server.stack.stage import stage

POLL_S = 0.5
PROBE_TIMEOUT_S = 2.0
STAGE_BYTES = 65536


class StackError(RuntimeError):
    """The stack did not start, or a process of it ended; the message says which and where its log is."""


class Progress:
    """What happens while a stack starts. This one is silent."""

    def note(self, line: str) -> None:
        """Something that is worth a line, such as a model being converted."""

    def waiting(self, spec: ProcessSpec, stage: str, elapsed: float) -> None:
        """``spec`` is not ready yet. ``elapsed``: seconds since its start."""

    def ready(self, spec: ProcessSpec, elapsed: float) -> None:
        """``spec`` answers."""


class Stack:
    """Start on enter, stop on exit::

    with Stack(StackSettings(model="tiny", router=False)) as stack:
        print(stack.prefill_urls, stack.decode_urls)

    Raises:
        StackError: on enter, when a process ends or is not ready in time. Nothing is left running.
        ModelError, PortError, ValidationError: before anything is started.
    """

    def __init__(
        self,
        settings: StackSettings,
        progress: Progress | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self.log_dir = settings.log_dir or new_log_dir(environ)
        self.specs: list[ProcessSpec] = []
        self.model: Model | None = None
        self._progress = progress or Progress()
        self._environ = environ
        self._clock = clock
        self._sleep = sleep
        self._processes: list[Process] = []

    @property
    def router_url(self) -> str:
        """Base URL of the router, without ``/v1``."""
        return self._urls(Role.ROUTER)[0]

    @property
    def prefill_urls(self) -> list[str]:
        return self._urls(Role.PREFILL)

    @property
    def decode_urls(self) -> list[str]:
        return self._urls(Role.DECODE)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until it is ready."""
        self.settings = placed(self.settings, self._environ)
        validate.runnable(self.settings, self._environ)
        self.model = resolve(self.settings.model, self._environ, progress=self._progress.note)
        self.specs = render(self.settings, allocate(self.settings), self.model, self.log_dir, cores())
        engines = [spec for spec in self.specs if spec.role is not Role.ROUTER]
        self.run(engines)
        # The router asks the engines what they are when it starts.
        self.run([spec for spec in self.specs if spec.role is Role.ROUTER])

    def run(self, specs: Sequence[ProcessSpec]) -> None:
        """Start these processes side by side and wait until each answers.

        Raises:
            StackError: one ended, or was not ready within ``startup_timeout``.
        """
        started = self._clock()
        missing = [Process(spec, grace=self.settings.stop_grace, environ=self._environ) for spec in specs]
        self._processes += missing
        with httpx.Client(timeout=PROBE_TIMEOUT_S, trust_env=False) as client:
            while missing:
                self.check()
                elapsed = self._clock() - started
                for process in list(missing):
                    spec = process.spec
                    # Another stack may have taken the port since it was found free, and answer there.
                    if _answers(client, spec.health) and process.listens():
                        missing.remove(process)
                        self._progress.ready(spec, elapsed)
                    else:
                        self._progress.waiting(spec, stage(read_tail(spec.log, STAGE_BYTES)), elapsed)
                if missing and elapsed > self.settings.startup_timeout:
                    raise self._too_slow(missing[0].spec)
                if missing:
                    self._sleep(POLL_S)

    def add_routers(self, envs: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        """Start further routers over the engines, by name, each with its own environment. Their base URLs.

        Raises:
            StackError, PortError
        """
        taken = {port for spec in self.specs if (port := urlsplit(spec.url).port) is not None}
        engines = [spec for spec in self.specs if spec.role is not Role.ROUTER]
        routers = {
            name: router_of(
                self.settings,
                search(self.settings.port, free, taken),
                engines,
                self.log_dir,
                name=f"router-{name}",
                env=env,
            )
            for name, env in envs.items()
        }
        self.specs += routers.values()
        self.run(list(routers.values()))
        return {name: spec.url for name, spec in routers.items()}

    def check(self) -> None:
        """Raise StackError when a process has ended."""
        for process in self._processes:
            if process.returncode is not None:
                raise StackError(
                    f"{process.spec.name} ended with exit code {process.returncode}. Its log, "
                    f"{process.spec.log}, ends with:\n{process.tail()}"
                )

    def watch(self) -> None:
        """Wait until a process ends, which is a StackError."""
        while True:
            self.check()
            self._sleep(POLL_S)

    def stop(self, *, at_once: bool = False) -> None:
        """Stop all processes and wait until they are gone. Idempotent."""
        if not at_once:
            # The router first: it ends its turns and releases what decode holds for it.
            for process in self._processes:
                if process.spec.role is Role.ROUTER:
                    process.ask_to_stop()
                    process.wait_stopped()
        for process in self._processes:
            process.ask_to_stop(at_once=at_once)
        while self._processes:
            self._processes[-1].wait_stopped()
            self._processes.pop()

    def _urls(self, role: Role) -> list[str]:
        return [spec.url for spec in self.specs if spec.role is role]

    def _too_slow(self, spec: ProcessSpec) -> StackError:
        return StackError(
            f"{spec.name} is not ready after {self.settings.startup_timeout:g} s "
            f"({stage(read_tail(spec.log, STAGE_BYTES))}): see {spec.log}, or raise startup_timeout"
        )


def new_log_dir(environ: Mapping[str, str]) -> Path:
    """A folder for the logs of one run, under the cache."""
    return cache_folder(environ) / "logs" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
