"""A real Prometheus reads a router over simulated engines as prometheus.yml says, and feeds the dashboard."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from conftest import SimulatedStack, StartStack
from deploy.compose.project import project
from deploy.grafana.monitoring import PROMETHEUS, RULES, panels
from rig.command import free_port

PATIENCE_S = 60.0
TURNS = 12
ALWAYS = (
    "Turns a second",
    "Turns that reuse KV",
    "TTFT, median",
    "TTFT, 95 of 100",
    "Engines that do not answer",
    "Alerts",
    "Turns by path",
    "Cold turns by reason",
    "Reuse by reason",
    "TTFT, median, by path",
    "TTFT, 95 of 100, by path",
    "Prompt tokens that prefill did not compute",
    "Turns in flight, and in the queue",
    "Tokens on decode, of the budget",
    "Tokens kept",
    "Conversations kept",
    "Handles",
    "Decode's KV in use",
    "Engines that answer",
    "Placements",
    "Prompt tokens on prefill, by source",
    "Found on decode, of what was asked for",
    "Moved by NIXL",
    "KV cache in use",
    "Requests running and waiting",
)
"""Panels that show something of a small fleet in which nothing fails."""


@contextmanager
def prometheus(stack: SimulatedStack, folder: Path) -> Iterator[httpx.Client]:
    """One with our configuration, quicker, and with the targets of compose.yaml where they are here."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus on this machine (Debian: prometheus)")
    config = yaml.safe_load(PROMETHEUS.read_text())
    config["global"] = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "1s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "rules.yml").write_text(RULES.read_text())
    where = {"router": stack.router, "prefill": stack.prefill_url, "decode": stack.decode_url}
    knobs = {f"PROMETHEUS_{name.upper()}": url.removeprefix("http://") for name, url in where.items()}
    knobs["PROMETHEUS_ROUTERS"] = knobs.pop("PROMETHEUS_ROUTER")
    (folder / "targets").mkdir()
    (folder / "targets" / "compose.yml").write_text(project(**knobs)["configs"]["targets"]["content"])
    listen = f"127.0.0.1:{free_port()}"
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    log = folder / "log"
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            [program, *words, f"--web.listen-address={listen}"], stdout=stream, stderr=stream
        ) as process,
    ):
        try:
            with httpx.Client(base_url=f"http://{listen}", trust_env=False, timeout=PATIENCE_S) as client:
                wait(lambda: ready(client), lambda: log.read_text())
                yield client
        finally:
            process.terminate()


def ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200 and len(asked(client, "up == 1")) == 3
    except httpx.TransportError:
        return False


def asked(client: httpx.Client, query: str) -> list[dict[str, Any]]:
    """What it answers.

    Raises:
        AssertionError: with its complaint.
    """
    answer = client.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", f"{query}: {answer}"
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def wait(done: Any, told: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < end, told()
        time.sleep(0.1)


def talk(router: str) -> None:
    """A conversation that grows, one turn after the other."""
    messages = [
        {"role": "user", "content": "Tell me of the sea, the ships on it and those who sail them. " * 20}
    ]
    for _ in range(TURNS):
        body = {"model": "simulated", "messages": messages, "conversation_id": "c"}
        reply = httpx.post(f"{router}/v1/chat/completions", json=body, trust_env=False, timeout=PATIENCE_S)
        assert reply.status_code == 200
        messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "And then?"}]


def test_every_panel_gets_an_answer(simulated_stack: StartStack, tmp_path: Path) -> None:
    stack = simulated_stack()
    talk(stack.router)
    with prometheus(stack, tmp_path) as client:
        before = float(asked(client, "sum(antiphon_turns_total)")[0]["value"][1])
        talk(stack.router)
        wait(lambda: float(asked(client, "sum(antiphon_turns_total)")[0]["value"][1]) == before + TURNS, str)
        empty = []
        for panel in panels():
            shown = [asked(client, put_in(target["expr"])) for target in panel["targets"]]
            if not any(shown):
                empty.append(panel["title"])
        assert set(ALWAYS) & set(empty) == set()
        assert set(ALWAYS) <= {panel["title"] for panel in panels()}
        assert {(one["metric"]["job"], one["metric"].get("role")) for one in asked(client, "up")} == {
            ("antiphon", None),
            ("vllm", "prefill"),
            ("vllm", "decode"),
        }
        groups = client.get("/api/v1/rules").json()["data"]["groups"]
        assert [rule["lastError"] for rule in groups[0]["rules"] if rule.get("lastError")] == []
        assert asked(client, 'ALERTS{alertstate="firing"}') == []


def put_in(query: str) -> str:
    return query.replace("$__rate_interval", "1m").replace("$router", ".*")
