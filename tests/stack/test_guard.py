"""Real process trees: nothing of a stack may outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon_server.stack.command import ProcessSpec
from antiphon_server.stack.guard import descendants
from antiphon_server.stack.process import Process, session_members
from antiphon_server.stack.settings import Role

TREE = Path(__file__).with_name("process_tree.py")
MEMBERS = 5
PATIENCE_S = 60.0


def tree(folder: Path, *arguments: str) -> ProcessSpec:
    """See ``process_tree.py``. Every one of the five processes writes its pid to the log."""
    argv = (sys.executable, str(TREE), *arguments)
    return ProcessSpec("tree", Role.DECODE, argv, {}, folder / "tree.log", "", "")


def until(what: Callable[[], bool]) -> bool:
    """Wait for something that is bound to happen; False when it does not."""
    end = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def pids(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_up(log: Path) -> list[int]:
    assert until(lambda: len(pids(log)) == MEMBERS), log.read_text()
    members = pids(log)
    assert all(map(alive, members))
    return members


@pytest.fixture
def started() -> Iterator[Callable[[ProcessSpec, float], Process]]:
    processes: list[Process] = []

    def start(spec: ProcessSpec, grace: float) -> Process:
        processes.append(Process(spec, grace=grace))
        return processes[-1]

    yield start
    for process in processes:
        process.ask_to_stop(at_once=True)
        process.wait_stopped()


Start = Callable[[ProcessSpec, float], Process]


def test_stop_asks_first_and_then_ends_all_descendants(tmp_path: Path, started: Start) -> None:
    process = started(tree(tmp_path, "polite"), 30.0)
    members = all_up(tmp_path / "tree.log")
    process.ask_to_stop()
    process.wait_stopped()
    assert process.returncode == 0  # it left by itself
    assert not any(map(alive, members))


def test_who_does_not_listen_is_killed_when_the_grace_is_over(tmp_path: Path, started: Start) -> None:
    process = started(tree(tmp_path, "stubborn"), 0.2)
    members = all_up(tmp_path / "tree.log")
    process.ask_to_stop()
    process.wait_stopped()
    assert process.returncode == 128 + signal.SIGKILL
    assert not any(map(alive, members))


def test_at_once_does_not_wait_for_the_grace(tmp_path: Path, started: Start) -> None:
    process = started(tree(tmp_path, "stubborn"), 3600.0)
    members = all_up(tmp_path / "tree.log")
    process.ask_to_stop(at_once=True)
    assert until(lambda: process.returncode is not None)
    assert not any(map(alive, members))


def test_exit_code_is_the_commands_and_its_leftovers_are_ended(tmp_path: Path, started: Start) -> None:
    process = started(tree(tmp_path, "polite", "7"), 30.0)
    assert until(lambda: process.returncode is not None)
    assert process.returncode == 7
    assert len(members := pids(tmp_path / "tree.log")) == MEMBERS
    assert not any(map(alive, members))


def test_a_signal_that_ends_the_command_is_told(tmp_path: Path, started: Start) -> None:
    process = started(tree(tmp_path, "polite"), 30.0)
    members = all_up(tmp_path / "tree.log")
    os.kill(descendants(process._guard.pid)[0], signal.SIGSEGV)
    assert until(lambda: process.returncode is not None)
    assert process.returncode == 128 + signal.SIGSEGV
    assert not any(map(alive, members))


def test_a_command_that_is_not_there_ends_with_127_and_says_so(tmp_path: Path, started: Start) -> None:
    spec = ProcessSpec("x", Role.ROUTER, ("/no/such/program",), {}, tmp_path / "x.log", "", "")
    process = started(spec, 1.0)
    assert until(lambda: process.returncode is not None)
    assert process.returncode == 127
    assert "/no/such/program" in process.tail()


def test_killing_the_stack_leaves_nothing_behind(tmp_path: Path) -> None:
    """``kill -9`` of the process that started two trees, one of which ignores SIGTERM."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    owner = textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_guard import Process, tree
        kept = [
            Process(tree(Path({str(tmp_path / "a")!r}), "polite"), grace=30.0),
            Process(tree(Path({str(tmp_path / "b")!r}), "stubborn"), grace=0.3),
        ]
        time.sleep(600)
    """)
    stack = subprocess.Popen([sys.executable, "-c", owner])
    try:
        members = all_up(tmp_path / "a" / "tree.log") + all_up(tmp_path / "b" / "tree.log")
        guards = [pid for pid in descendants(stack.pid) if pid not in members]
        assert len(guards) == 2
    finally:
        os.kill(stack.pid, signal.SIGKILL)
        stack.wait()
    assert until(lambda: not any(map(alive, [*members, *guards])))


def test_a_killed_guard_takes_its_command_along(tmp_path: Path, started: Start) -> None:
    process = started(tree(tmp_path, "polite"), 30.0)
    members = all_up(tmp_path / "tree.log")
    in_session = session_members(process._guard.pid)
    assert len(in_session) == MEMBERS - 2 + 1  # all but the detached branch, and the guard
    command = descendants(process._guard.pid)[0]
    os.kill(process._guard.pid, signal.SIGKILL)
    assert until(lambda: not alive(command))  # also when nobody is left to look for it
    process.ask_to_stop()
    process.wait_stopped()
    assert until(lambda: not any(map(alive, in_session)))
    # A grandchild in a session of its own is out of reach then; only the guard could find it.
    for pid in members:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
