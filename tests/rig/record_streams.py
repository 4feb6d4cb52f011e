"""Record what real engines send, for ``tests/router/test_fidelity.py``: ``python -m rig.record_streams`` in
``tests``. Boots two pairs, one after the other; some minutes on two cores.

One pair is plain; the other's model also says ``</think>`` at times, and its engines tell reasoning apart.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from antiphon_server.router.legs import FORMS, Surface, decode_body, prefill_body, read_ask, read_filled
from antiphon_server.stack.models import CHATML, tiny, tokenizers
from antiphon_server.stack.settings import Override, StackSettings
from antiphon_server.stack.stack import Stack
from rig.legs import PROTOCOL
from rig.recorded import STREAMS

SYSTEM = "You are an agent that answers in short letters. " * 4
USER = [{"role": "user", "content": "Name the first letters, please, and take your time."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome"]}, "days": {"type": "integer", "enum": [1, 2]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look", "description": "Looks.", "strict": True}
TEXT: dict[Surface, dict[str, Any]] = {
    "chat": {"messages": [{"role": "system", "content": SYSTEM}, *USER], "max_tokens": 40},
    "completions": {"prompt": SYSTEM, "max_tokens": 40},
    "responses": {"instructions": SYSTEM, "input": USER, "max_output_tokens": 40},
    "messages": {"system": SYSTEM, "messages": USER, "max_tokens": 40},
}
TOOL: dict[Surface, dict[str, Any]] = {
    "chat": {
        "tools": [{"type": "function", "function": {**FUNCTION, "parameters": SCHEMA}}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "max_tokens": 400,
    },
    "responses": {
        "tools": [{"type": "function", **FUNCTION, "parameters": SCHEMA}],
        "tool_choice": {"type": "function", "name": "look"},
        "max_output_tokens": 400,
    },
    "messages": {
        "tools": [{**FUNCTION, "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "look"},
        "max_tokens": 400,
    },
}
LONGER: dict[Surface, dict[str, Any]] = {
    "chat": {"max_tokens": 60, "thinking_token_budget": 12},
    "responses": {"max_output_tokens": 120},
    "messages": {"max_tokens": 120},
}
PLAIN: Sequence[tuple[Surface, str, dict[str, Any]]] = (
    *((surface, "text", {}) for surface in FORMS),
    ("responses", "tool", TOOL["responses"]),
    ("messages", "tool", TOOL["messages"]),
)
THINKING: Sequence[tuple[Surface, str, dict[str, Any]]] = (
    *((surface, "thought", LONGER[surface]) for surface in LONGER),
    ("chat", "tool", {**TOOL["chat"], "thinking_token_budget": 6}),
)


def main() -> None:
    """Record all."""
    with tempfile.TemporaryDirectory() as folder:
        _record(StackSettings(model="tiny", router=False, threshold=1, max_model_len=8192), PLAIN)
        thinker = _thinker(Path(folder) / "thinker")
        strings = {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}
        flags = ("--chat-template", str(CHATML), "--reasoning-parser", "deepseek_r1")
        own = Override(flags=(*flags, "--reasoning-config", json.dumps(strings)))
        overrides = {"prefill": own, "decode": own}
        settings = StackSettings(
            model=str(thinker), router=False, threshold=1, max_model_len=8192, overrides=overrides
        )
        _record(settings, THINKING)


def _thinker(folder: Path) -> Path:
    """``tiny`` with two more tokens, one of which it may sample."""
    tokenizers.SPECIALS = (*tokenizers.SPECIALS, "<think>", "</think>")  # type: ignore[assignment]
    printable = tiny._printable
    tiny._printable = lambda tokenizer, token: (
        printable(tokenizer, token) or tokenizer.id_to_token(token) == "</think>"
    )
    folder.mkdir()
    tiny._write(folder, tokenizers.byte_tokenizer())
    return folder


def _record(settings: StackSettings, wanted: Sequence[tuple[Surface, str, dict[str, Any]]]) -> None:
    headers = {**PROTOCOL, "content-type": "application/json"}
    with Stack(settings) as stack, httpx.Client(timeout=300, trust_env=False, headers=headers) as http:
        (prefill,), (decode,) = stack.prefill_urls, stack.decode_urls
        assert stack.model is not None
        for surface, kind, more in wanted:
            body = {"model": stack.model.name, "temperature": 1.0, **TEXT[surface], **more}
            streamed = {**body, "stream": True}
            if surface in {"chat", "completions"}:
                streamed["stream_options"] = {"include_usage": True}
            told, chunks = _stream(http, decode, surface, _decode_leg(http, prefill, surface, streamed))
            leg = _decode_leg(http, prefill, surface, body)
            whole = http.post(decode + FORMS[surface].path, content=leg).raise_for_status().text
            _write(surface, kind, told, chunks, whole)


def _decode_leg(http: httpx.Client, prefill: str, surface: Surface, body: dict[str, Any]) -> bytes:
    ask = read_ask(surface, json.dumps(body).encode())
    reply = http.post(prefill + FORMS[surface].path, content=prefill_body(ask, None)).raise_for_status()
    return decode_body(ask, read_filled(reply.content))


def _stream(
    http: httpx.Client, decode: str, surface: Surface, leg: bytes
) -> tuple[dict[str, str], list[str]]:
    with http.stream("POST", decode + FORMS[surface].path, content=leg) as reply:
        assert reply.status_code == 200
        kept = ("content-type", "x-antiphon-prompt")
        headers = {name: reply.headers[name] for name in kept if name in reply.headers}
        return headers, [chunk.decode() for chunk in reply.iter_raw()]


def _write(surface: str, kind: str, headers: dict[str, str], chunks: list[str], whole: str) -> None:
    about = "vLLM on CPU with our plug-in, a random model. One item of `chunks` is one chunk of HTTP."
    content = {"surface": surface, "about": about, "headers": headers, "chunks": chunks, "whole": whole}
    text = json.dumps(content, ensure_ascii=False, indent=1)
    (STREAMS / f"{surface}-{kind}.json").write_text(text + "\n")
    print(f"{surface}-{kind}: {len(chunks)} chunks")


if __name__ == "__main__":
    main()
