from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import pytest
from openai import OpenAI

import antiphon_openai
from rig.answers import client_of
from rig.fleet import CACHED, UNCACHED, Pair, fleet
from rig.mortal import Mortals


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails because UCX ended one of its engines says so, and is no failure of ours."""
    report = yield
    fleet = item.funcargs.get("fleet")
    if call.when == "call" and report.failed and isinstance(fleet, Mortals) and fleet.ended_by_ucx:
        report.outcome = "skipped"
        report.wasxfail = f"UCX ended {', '.join(fleet.ended_by_ucx)}"
    return report


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Pair]]:
    """All engines of the run. ``ANTIPHON_TEST_LOGS`` keeps their logs in a folder of your choice."""
    logs = os.environ.get("ANTIPHON_TEST_LOGS")
    with fleet(Path(logs) if logs else tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(scope="session", params=[CACHED, UNCACHED])
def pair(request: pytest.FixtureRequest, pairs: Mapping[str, Pair]) -> Pair:
    """Prefill with its prefix cache on, then off."""
    return pairs[request.param]


@pytest.fixture
def agent(pair: Pair) -> Iterator[OpenAI]:
    """A user's client: wrapped, and pointed at the router."""
    with client_of(pair.router) as client:
        yield antiphon_openai.wrap(client)


@pytest.fixture
def prefill(pair: Pair) -> Iterator[OpenAI]:
    """A plain client of the prefill engine."""
    with client_of(pair.prefill) as client:
        yield client


@pytest.fixture
def decode(pair: Pair) -> Iterator[OpenAI]:
    """A plain client of the decode engine."""
    with client_of(pair.decode) as client:
        yield client


@pytest.fixture
def salt() -> str:
    """A cache salt that nobody used before."""
    return uuid.uuid4().hex
