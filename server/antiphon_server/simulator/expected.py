"""What full recomputation would have answered: the oracle of every exactness test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from antiphon_server.simulator.answer import recomputed
from antiphon_server.simulator.ask import Ask, read_chat, read_completion
from antiphon_server.simulator.messages import read_messages
from antiphon_server.simulator.responses import read_responses
from antiphon_server.simulator.settings import Settings
from antiphon_server.simulator.spoken import SHOWN
from antiphon_server.simulator.tokens import token_bytes


def _read_responses(body: Any, settings: Settings) -> Ask:
    return read_responses(body, settings, {})[2]


_READ: Mapping[str, Callable[[Any, Settings], Ask]] = {
    "chat": read_chat,
    "completions": read_completion,
    "messages": read_messages,
    "responses": _read_responses,
}


def expected_text(settings: Settings, body: Mapping[str, Any], surface: str) -> str:
    """All that a request's answer shows, joined: thoughts, text, arguments of calls.

    Raises:
        BadRequestError: the request is malformed.
    """
    plain = {key: value for key, value in body.items() if key != "kv_transfer_params"}
    ask = _READ[surface](plain, settings)
    tokens = recomputed(settings, ask.prompt, ask.script, ask.limit, ask.nonce)
    shown = (token for token, slot in zip(tokens, ask.script, strict=False) if slot.part in SHOWN)
    return b"".join(map(token_bytes, shown)).decode("utf-8", "replace")
