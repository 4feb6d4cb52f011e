"""aiperf runs against the router unchanged: ``--session-header X-Session-ID`` is all that reuse needs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon_server.simulator import Settings, expected_text
from antiphon_server.simulator.ask import read_chat
from antiphon_server.simulator.job import Received
from antiphon_server.stack.models.tokenizers import byte_tokenizer, save
from rig import guide, peers
from rig.recipe import ROOT, turns_of

PAGE = "benchmark-tools.md"
QUIET = ("--ui", "none", "--no-gpu-telemetry", "--export-outputs-json", "--random-seed", "1")
CONTEXT = 131072
ENGINE = {"capacity": 16384, "max_model_len": CONTEXT}
END = 1
"""The token that ends an answer: engines count it, while aiperf counts the tokens of the text."""
_MATCHED = re.compile(r"^antiphon_matched_tokens_total (\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Profile:
    """What one run left. ``summary``: aiperf's own figures; ``records`` and ``answers``: one a request.
    ``asked``: what decode was asked; ``matched``: tokens that the router says were reused."""

    summary: Mapping[str, Any]
    records: list[dict[str, Any]]
    answers: list[str]
    turns: Mapping[tuple[str, str], int]
    matched: int
    asked: list[Received]
    settings: Settings

    def figure(self, name: str) -> float:
        """One of aiperf's."""
        return float(self.summary[name]["avg"])

    def values(self, name: str) -> list[int]:
        """A metric of every request, sorted."""
        return sorted(record["metrics"][name]["value"] for record in self.records)

    def assert_served(self, requests: int, conversations: int) -> None:
        """All succeeded; each conversation was new once, and what followed reused."""
        assert self.figure("request_count") == requests == len(self.records) == len(self.asked)
        assert (self.figure("request_error_rate"), self.summary["error_summary"]) == (0, [])
        assert self.turns["cold", "first"] == conversations
        assert sum(self.turns.values()) == requests
        assert [key for key in self.turns if key[0] != "reuse"] == [("cold", "first")]

    def assert_tokens_agree(self) -> None:
        """aiperf read from the replies what the engines and the router counted."""
        prompts = [len(read_chat(received.body, self.settings).prompt) for received in self.asked]
        assert self.values("usage_prompt_tokens") == sorted(prompts)
        assert self.figure("total_usage_prompt_cache_read_tokens") == self.matched > 0
        for record in self.records:
            cached = record["metrics"]["usage_prompt_cache_read_tokens"]["value"]
            assert (cached > 0) == (record["metadata"]["turn_index"] > 0)

    def assert_exact(self) -> None:
        """Every answer is what full recomputation would have given."""
        recomputed = sorted(expected_text(self.settings, received.body, "chat") for received in self.asked)
        assert sorted(self.answers) == recomputed


@pytest.fixture
def profile(simulated_stack: Any, tmp_path: Path) -> Callable[..., Profile]:
    """Run one of the guide's commands."""

    def profile(name: str, **variables: object) -> Profile:
        programs = peers.environment() / "bin"
        tokenizer, results = tmp_path / "tokenizer", tmp_path / "results"
        tokenizer.mkdir()
        save(byte_tokenizer(), tokenizer, context=CONTEXT)
        guide.write_files(PAGE, tmp_path)
        stack = simulated_stack(prefill=ENGINE, decode=ENGINE)
        program, *words = guide.command(
            PAGE, name, ROUTER=stack.router, MODEL="simulated", TOKENIZER=tokenizer, **variables
        )
        peers.output_of_peer(
            str(programs / program), *words, *QUIET, "--artifact-dir", str(results), folder=tmp_path
        )
        metrics = httpx.get(f"{stack.router}/metrics", trust_env=False).text
        return Profile(
            json.loads((results / "profile_export_aiperf.json").read_text()),
            [json.loads(line) for line in (results / "profile_export.jsonl").read_text().splitlines()],
            [each["response_text"] for each in json.loads((results / "outputs.json").read_text())["data"]],
            turns_of(stack.router),
            int(_MATCHED.findall(metrics)[0]),
            [received for received in stack.decode.requests if received.path == "/v1/chat/completions"],
            stack.decode.settings,
        )

    return profile


def test_conversations_are_reused_and_counts_agree(profile: Callable[..., Profile]) -> None:
    ran = profile("multi-turn")
    ran.assert_served(requests=7, conversations=2)
    ran.assert_tokens_agree()
    ran.assert_exact()
    # What aiperf counts of the answers with its own tokenizer is what the engine counts.
    lengths = [length + END for length in ran.values("output_sequence_length")]
    assert lengths == ran.values("usage_completion_tokens")


def test_mooncake_sessions_are_reused(profile: Callable[..., Profile]) -> None:
    ran = profile("mooncake")
    ran.assert_served(requests=5, conversations=2)
    ran.assert_tokens_agree()
    ran.assert_exact()


def test_coding_agent_trace_reuses_what_it_could(profile: Callable[..., Profile]) -> None:
    """Its prompts repeat what was sent, and other text in place of the answers: reuse ends there."""
    ran = profile("weka", TRACE=ROOT / "tests" / "data" / "coding_agents" / "trace_0167.json")
    ran.assert_served(requests=6, conversations=1)
    ran.assert_tokens_agree()
    ran.assert_exact()
    # aiperf knows from the trace's block ids how much of the prompts repeats.
    reused = ran.figure("overall_usage_prompt_cache_read_pct")
    assert reused == pytest.approx(ran.figure("theoretical_prefix_cache_hit"), abs=1.0)
