"""A project of somebody else's adopts the fixtures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import respx

import antiphon
import antiphon_openai
from antiphon.testing import FakeRouter
from antiphon.testing.plugin import antiphon_mock, antiphon_router

__all__ = ["antiphon_mock", "antiphon_router"]

PACKAGES = [Path(package.__file__ or "").parents[1] for package in (antiphon, antiphon_openai)]
GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"

ADOPTED = """
import httpx
from antiphon.testing import assert_same_conversation

def test_router(antiphon_router):
    httpx.post(antiphon_router.base_url + "/chat/completions", json={"conversation_id": "c"})
    assert assert_same_conversation(antiphon_router.calls()) == "c"

def test_mock(antiphon_mock):
    antiphon_mock.get("http://nowhere.invalid").respond(204)
    assert httpx.get("http://nowhere.invalid").status_code == 204
"""


AGENT = """
import antiphon, antiphon_openai
from openai import OpenAI

MESSAGE = {"role": "assistant", "content": "ok"}
REPLY = {"id": "1", "created": 1, "model": "m", "object": "chat.completion"}
REPLY["choices"] = [{"index": 0, "finish_reason": "stop", "message": MESSAGE}]

def run_my_agent(base_url):
    with OpenAI(base_url=base_url, api_key="k") as client, antiphon.conversation() as conversation:
        antiphon_openai.wrap(client)
        turn = conversation.turn([{"role": "user", "content": "How many hinges are there?"}])
        while not (turn.messages[-1]["role"] == "assistant"):
            turn.add_reply(client.chat.completions.create(model="m", messages=turn.messages))
            for call in turn.calls:
                turn.add_tool_result(call.id, "12")
"""


def run(project: Path, test: str) -> subprocess.CompletedProcess[str]:
    (project / "test_agent.py").write_text(test)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:asyncio",
        "-W",
        "error",
        "--rootdir",
        str(project),
        str(project),
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=project, env=environment)


def test_fresh_project_adopts_the_fixtures_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["antiphon.testing.plugin"]\n')
    ran = run(tmp_path, ADOPTED)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_project_that_does_not_adopt_them_does_not_have_them(tmp_path: Path) -> None:
    ran = run(tmp_path, ADOPTED)
    assert "fixture 'antiphon_router' not found" in ran.stdout


def test_guide_is_true(tmp_path: Path) -> None:
    conftest, *tests = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "conftest.py").write_text(conftest)
    ran = run(tmp_path, AGENT + "\n".join(tests))
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_router_listens_while_the_test_runs(antiphon_router: FakeRouter) -> None:
    assert httpx.get(f"{antiphon_router.base_url}/models").status_code == 200


def test_mocked_routes_need_not_be_called(antiphon_mock: respx.MockRouter) -> None:
    antiphon_mock.get("http://nowhere.invalid")


@pytest.mark.respx(base_url="http://nowhere.invalid")
def test_options_are_those_of_respx_own_fixture(antiphon_mock: respx.MockRouter) -> None:
    antiphon_mock.get("/a").respond(204)
    assert httpx.get("http://nowhere.invalid/a").status_code == 204
