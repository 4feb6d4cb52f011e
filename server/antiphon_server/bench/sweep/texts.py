"""The words of a sweep: the same in every arm, of the wanted number of tokens."""

from __future__ import annotations

from typing import Any

import httpx

from antiphon_server.bench.site import Site
from antiphon_server.text import fit

SYSTEM = "You read logs and answer in a few words."
_STRIDE = 1000
"""Seeds of one conversation."""


class Texts:
    """Asks the engines how many tokens a text has. Close it."""

    def __init__(self, site: Site) -> None:
        self._model = site.model
        headers = {"Authorization": f"Bearer {site.api_key}"}
        self._http = httpx.Client(base_url=site.router, timeout=60.0, trust_env=False, headers=headers)
        self._known: dict[tuple[int, int], str] = {}

    def close(self) -> None:
        self._http.close()

    def prefix(self, conversation: int, tokens: int) -> str:
        """What a conversation starts with; no two share its beginning."""
        return self._fit(conversation * _STRIDE, tokens)

    def message(self, conversation: int, turn: int, tokens: int) -> str:
        """What is new in a turn."""
        return self._fit(conversation * _STRIDE + turn, tokens)

    def context(self) -> int | None:
        """Tokens that the model takes; None where the engines do not say."""
        reply = self._http.get("/v1/models").raise_for_status()
        known = reply.json()["data"][0].get("max_model_len")
        return int(known) if known else None

    def _fit(self, seed: int, tokens: int) -> str:
        if (seed, tokens) not in self._known:
            self._known[seed, tokens] = fit(seed, tokens, self._count)
        return self._known[seed, tokens]

    def _count(self, text: str) -> int:
        asked: dict[str, Any] = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return int(self._http.post("/tokenize", json=asked).raise_for_status().json()["count"])
