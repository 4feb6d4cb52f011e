"""The engines of a test run: booted once, each pair behind a router of its own."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from antiphon_server.stack import ports
from antiphon_server.stack.command import ProcessSpec
from antiphon_server.stack.process import Process
from antiphon_server.stack.settings import ALWAYS_REUSE, Override, Role, StackSettings
from antiphon_server.stack.stack import Stack

ROUTER_START_S = 60.0
THINKING = Path(__file__).with_name("thinking.py")
BLOCK = 32
KV_BYTES_PER_TOKEN = 4 * 2 * 2 * 64 * 4
"""tiny: layers, key and value, KV heads, head size, bytes of a float32."""

CACHED, UNCACHED, UNCHECKED = "cached", "uncached", "unchecked"
"""Prefill engines: prefix cache on, failed pulls recomputed; cache off, failed pulls refused; stock reuse."""


@dataclass(frozen=True)
class Pair:
    """One prefill engine, the decode engine and a router over both. URLs without ``/v1``."""

    prefill: str
    decode: str
    router: str


def settings(log_dir: Path) -> StackSettings:
    """One decode engine and three kinds of prefill. The threshold of 1 leaves no common block unpulled."""
    return StackSettings(
        model="tiny",
        prefill=3,
        decode=1,
        router=False,
        threshold=1,
        log_dir=log_dir,
        max_model_len=8192,
        overrides={
            "prefill-0": Override(prefix_cache=True, failure_policy="recompute"),
            "prefill-1": Override(prefix_cache=False, failure_policy="fail"),
            "prefill-2": Override(prefix_cache=True, kv_extra={"antiphon_unsafe_skip_prefix_check": True}),
            "decode": Override(
                flags=("--reasoning-parser-plugin", str(THINKING), "--reasoning-parser", "thinking")
            ),
        },
    )


@contextlib.contextmanager
def fleet(log_dir: Path) -> Iterator[Mapping[str, Pair]]:
    """Boot it; stop all of it at the end."""
    with contextlib.ExitStack() as stack:
        engines = stack.enter_context(Stack(settings(log_dir)))
        (decode,) = engines.decode_urls
        yield {
            kind: Pair(url, decode, stack.enter_context(router(url, decode, log_dir / f"router-{kind}.log")))
            for kind, url in zip((CACHED, UNCACHED, UNCHECKED), engines.prefill_urls, strict=True)
        }


@contextlib.contextmanager
def router(
    prefill: str | Sequence[str],
    decode: str | Sequence[str],
    log: Path,
    env: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A router process over one or several engines; its URL. Always reuses unless ``env`` says otherwise."""
    port = ports.search(18000, ports.free, set())
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "antiphon_server.cli", "router", "--host", "127.0.0.1"]
    argv += ["--port", str(port)]
    for flag, urls in (("--prefill", prefill), ("--decode", decode)):
        for one in [urls] if isinstance(urls, str) else urls:
            argv += [flag, one]
    environ = {**ALWAYS_REUSE, **(env or {})}
    # It dies with the tests, even if these are killed.
    spec = ProcessSpec("router", Role.ROUTER, tuple(argv), environ, log, url, f"{url}/ready")
    process = Process(spec, grace=60.0)
    try:
        _await_ready(process)
        yield url
    finally:
        process.ask_to_stop()
        process.wait_stopped()


def _await_ready(process: Process) -> None:
    deadline = time.monotonic() + ROUTER_START_S
    while time.monotonic() < deadline and process.returncode is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(process.spec.health, timeout=5, trust_env=False).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(f"router at {process.spec.url} is not ready: {process.tail(40)}")
