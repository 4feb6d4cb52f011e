from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon_server.doctor.finding import Examination
from antiphon_server.doctor.fleet.examine import examine
from antiphon_server.doctor.fleet.target import FleetTarget

SOUND: dict[str, Any] = {"max_model_len": 8192}


@pytest.fixture
def examined(
    simulated_stack: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Examination, list[str]]]:
    """Starts a simulated stack that is sound but for what is given, and examines it. ``plant`` gets the
    stack; ``target`` are fields of the target, URLs as ``router_url``, ``prefill_urls`` and ``decode_urls``;
    ``later`` likewise, read once the stack runs."""
    # However busy this machine is, prompts are as long.
    monkeypatch.setattr("antiphon_server.doctor.fleet.examine.PAIR_S", 1e9)

    def run(
        *,
        prefill: dict[str, Any] | None = None,
        decode: dict[str, Any] | None = None,
        router: dict[str, Any] | None = None,
        plant: Callable[[Any], None] | None = None,
        later: dict[str, Any] | None = None,
        **target: Any,
    ) -> tuple[Examination, list[str]]:
        stack = simulated_stack(
            prefill={**SOUND, "threshold": 16, **(prefill or {})},
            decode={**SOUND, **(decode or {})},
            router=router,
        )
        if plant is not None:
            plant(stack)
        given = {
            "router_url": stack.router,
            "prefill_urls": (stack.prefill_url,),
            "decode_urls": (stack.decode_url,),
            **target,
            **(later or {}),
        }
        given = {name.removesuffix("_url").removesuffix("_urls"): value for name, value in given.items()}
        found = examine(FleetTarget(**given))
        return found, [finding.check for finding in found.findings]

    return run
