"""Waiting for a host's units, which may never come up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deploy.efa.host import Host

LONG_S = 3600
SOON_S = 30


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two engines and a router, none of which answers."""
    names = "PRESET=cpu\nENGINES='prefill-0 decode-0'\nENGINE_URLS='http://p http://d'\nROUTER_URL=http://r\n"
    host = Host(tmp_path, names)
    host.program("curl", 'echo "no answer from ${*: -1}" >&2; exit 7')
    host.program("journalctl", 'echo "the log, by $*"')
    return host


def test_it_does_not_wait_for_units_that_have_failed(host: Host) -> None:
    host.program("systemctl", '[[ "$1" == is-failed ]] || exit 3')
    begun = time.monotonic()
    ran = host.run("check.sh", "--wait", str(LONG_S))
    assert time.monotonic() - begun < SOON_S
    assert ran.returncode == 1
    for unit, what in (
        ("antiphon-engine@prefill-0.service", "http://p answers"),
        ("antiphon-engine@decode-0.service", "http://d answers"),
        ("antiphon-router.service", "http://r is ready"),
    ):
        log = f"the log, by --no-pager --unit {unit} --lines 30\nFAIL  {what}\n"
        assert log in ran.stdout, ran.stdout


def test_it_waits_for_units_that_are_starting(host: Host, tmp_path: Path) -> None:
    """systemd starts one that ended again: meanwhile it is not failed."""
    host.program("systemctl", '[[ "$1" == is-active ]]')
    host.program("curl", f"[[ -e {tmp_path}/loaded ]]")
    host.program("sleep", f"touch {tmp_path}/loaded")
    ran = host.run("check.sh", "--wait", str(LONG_S))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "loaded").exists()
    assert "the log" not in ran.stdout


def test_without_waiting_it_asks_once(host: Host) -> None:
    host.program("systemctl", "exit 3")
    host.program("sleep", "exit 1")
    ran = host.run("check.sh")
    assert ran.returncode == 1
    assert "FAIL  http://p answers\nno answer from http://p/health" in ran.stdout
