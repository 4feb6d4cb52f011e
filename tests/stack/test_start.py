"""Starting and watching, with small scripts instead of engines."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon_server.stack.command import ProcessSpec
from antiphon_server.stack.ports import free, search
from antiphon_server.stack.settings import Role, StackSettings
from antiphon_server.stack.stack import Progress, Stack, StackError
from antiphon_server.stack.stage import stage

SERVER = """
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    left = int(sys.argv[2])
    def do_GET(self):
        Handler.left -= 1
        self.send_response(200 if Handler.left < 0 else 503)
        self.end_headers()
    def log_message(self, *arguments): pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Recorder(Progress):
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def waiting(self, spec: ProcessSpec, stage: str, elapsed: float) -> None:
        self.told.append((spec.name, "waiting"))

    def ready(self, spec: ProcessSpec, elapsed: float) -> None:
        self.told.append((spec.name, "ready"))


def server(folder: Path, name: str, busy: int = 0) -> ProcessSpec:
    """Answers 503 ``busy`` times, then 200."""
    port = search(18500, free, set())
    argv = (sys.executable, "-c", SERVER, str(port), str(busy))
    url = f"http://127.0.0.1:{port}"
    return ProcessSpec(name, Role.DECODE, argv, {}, folder / f"{name}.log", url, url)


def script(folder: Path, name: str, code: str) -> ProcessSpec:
    nobody = "http://127.0.0.1:9"
    return ProcessSpec(
        name, Role.DECODE, (sys.executable, "-c", code), {}, folder / f"{name}.log", nobody, nobody
    )


Make = Callable[..., Stack]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    stacks: list[Stack] = []

    def build(progress: Progress | None = None, **settings: float) -> Stack:
        own = StackSettings(log_dir=tmp_path, stop_grace=settings.get("stop_grace", 5.0),
                            startup_timeout=settings.get("startup_timeout", 60.0))  # fmt: skip
        stacks.append(Stack(own, progress))
        return stacks[-1]

    yield build
    for stack in stacks:
        stack.stop(at_once=True)


def test_ready_means_that_health_answers_200(tmp_path: Path, make: Make) -> None:
    recorder = Recorder()
    make(recorder).run([server(tmp_path, "a", busy=2)])
    told = [what for _, what in recorder.told]
    assert told.count("waiting") >= 2
    assert told[-1] == "ready"


def test_a_process_that_ends_during_start_is_told_with_the_end_of_its_log(tmp_path: Path, make: Make) -> None:
    stack = make()
    with pytest.raises(StackError, match="b ended with exit code 9") as caught:
        stack.run([server(tmp_path, "a", busy=10**6), script(tmp_path, "b", "print('the reason'); exit(9)")])
    assert "the reason" in str(caught.value)
    assert str(tmp_path / "b.log") in str(caught.value)


def test_who_is_not_ready_in_time_is_told(tmp_path: Path, make: Make) -> None:
    stack = make(startup_timeout=0.2)
    with pytest.raises(StackError, match=r"a is not ready after 0\.2 s"):
        stack.run([script(tmp_path, "a", "import time; time.sleep(600)")])


def test_somebody_else_at_the_port_does_not_make_a_process_ready(tmp_path: Path, make: Make) -> None:
    """Two stacks that start at once may find the same port free."""
    theirs = server(tmp_path, "theirs")
    make().run([theirs])
    ours = dataclasses.replace(
        script(tmp_path, "ours", "import time; time.sleep(600)"), url=theirs.url, health=theirs.health
    )
    with pytest.raises(StackError, match="ours is not ready"):
        make(startup_timeout=1.0).run([ours])


def test_leaving_the_block_stops_what_a_failed_start_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = script(tmp_path, "a", "import time; time.sleep(600)")

    def start(stack: Stack) -> None:
        stack.run([sleeper, script(tmp_path, "b", "exit(1)")])

    monkeypatch.setattr(Stack, "start", start)
    stack = Stack(StackSettings(log_dir=tmp_path, stop_grace=5.0))
    with pytest.raises(StackError, match="b ended"), stack:
        pytest.fail("it cannot have started")
    assert stack._processes == []


def test_watching_ends_with_the_process(tmp_path: Path, make: Make) -> None:
    stack = make()
    spec = server(tmp_path, "a")
    stack.run([spec])
    stack._processes[0]._guard.terminate()
    with pytest.raises(StackError, match="a ended"):
        stack.watch()


LAST_WORDS = """
import signal, urllib.request

def end(*arguments):
    with urllib.request.urlopen(sys.argv[3]) as reply, open(sys.argv[4], "w") as file:
        file.write(str(reply.status))
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
"""


def test_engines_still_answer_while_the_router_stops(tmp_path: Path, make: Make) -> None:
    """It releases then what decode holds for it."""
    stack = make()
    engine = server(tmp_path, "engine")
    stack.run([engine])
    said = tmp_path / "said"
    plain = server(tmp_path, "router")
    _, flag, _, *serve = plain.argv
    argv = (sys.executable, flag, "import sys" + LAST_WORDS + SERVER, *serve, engine.url, str(said))
    stack.run([dataclasses.replace(plain, role=Role.ROUTER, argv=argv)])
    stack.stop()
    assert said.read_text() == "200"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("", "starting Python"),
        ("noise\nINFO Initializing a V1 LLM engine (v0.32)\nnoise", "starting the engine core"),
        ("non-default args: {NIXL}\nResolved architecture: Qwen3", "reading the configuration"),
        ("Initializing a V1 LLM engine\nLoading safetensors checkpoint shards: 0%", "loading weights"),
        ("Loading weights took 0.1 s\nCPU KV cache size: 1 tokens\nnoise", "allocating the KV cache"),
        ("KV cache size: 1\nInitializing NIXL worker x", "registering KV with NIXL"),
        ("Started server process\nINFO: Application startup complete.", "serving"),
    ],
)
def test_the_last_telling_line_names_the_stage(log: str, words: str) -> None:
    assert stage(log) == words
