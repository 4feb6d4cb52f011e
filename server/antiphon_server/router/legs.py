"""The bodies of a turn's two legs, and what their replies hold. Pure.

A body is parsed one level deep: its values stay raw JSON, so a history of hundreds of kilobytes and the ids
of its prompt are copied, never turned into objects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from antiphon_server.protocol import Handle, Seal, seal_of
from antiphon_server.router.identity import BODY_FIELDS
from antiphon_server.router.plan import Reason

Body = dict[str, msgspec.Raw]
Surface = Literal["chat", "completions"]

_DECODER = msgspec.json.Decoder(Body)
_ENCODE = msgspec.json.Encoder().encode
_TRUE = msgspec.Raw(b"true")
_ONE = msgspec.Raw(b"1")

_ENGINES_OWN = ("kv_transfer_params", "ec_transfer_params")
"""Where an engine reads other engines' memory: nobody but the router may say."""
_OURS = ("conversation_id", "request_id", *_ENGINES_OWN)
"""Never forwarded: engines do not know the first, and nobody but the router may set the others."""

_NOT_FOR_PREFILL = (
    *_OURS,
    "stream",
    "stream_options",
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "thinking_token_budget",
    "return_tokens_as_token_ids",
    "return_token_offsets",
    "return_prompt_text",
    "return_token_ids",
    # The sampled token is thrown away; and a seed ends vLLM 0.32 on CPU when the prefill is chunked ("CPU
    # Generator does not use offset").
    "seed",
)
_COLD: Handle = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_MEDIA = (
    b'"image_url"',
    b'"input_image"',
    b'"image_pil"',
    b'"image_embeds"',
    b'"input_audio"',
    b'"audio_url"',
    b'"audio_embeds"',
    b'"video_url"',
    b'"file"',
)
_TOKEN_IDS = re.compile(rb'"(?:prompt_)?token_ids"\s*:\s*\[')


class _Choice(msgspec.Struct):
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class _PrefillReply(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    choices: list[_Choice] = []


@dataclass(frozen=True, slots=True)
class Ask:
    """A client's request. ``alone``: why no hand-over can carry it, so that decode has to serve it by
    itself. ``named``: the few fields from which an identity is read."""

    surface: Surface
    body: Body
    stream: bool
    token_ids: bool
    alone: Reason | None
    named: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filled:
    """What a prefill leg returned: its handle as raw JSON, the prompt's ids as raw JSON, and the handle's
    parts that the router reads."""

    handle: Body
    token_ids: msgspec.Raw | None
    lease: str | None
    seal: Seal | None


class MalformedBodyError(ValueError):
    """The body is not a JSON object."""


def read_ask(surface: Surface, data: bytes) -> Ask:
    """Parse a client's body.

    Raises:
        MalformedBodyError: see there.
    """
    try:
        body = _sanitised(_DECODER.decode(data))
        return Ask(
            surface,
            body,
            stream=_value(body, "stream") is True,
            token_ids=_value(body, "return_token_ids") is True,
            alone=_alone(surface, body),
            named={name: _value(body, name) for name in BODY_FIELDS if name in body},
        )
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedBodyError(f"request body is not a JSON object that can be read: {error}") from error


def _sanitised(body: Body) -> Body:
    """Without the engines' own fields in ``vllm_xargs``, which vLLM merges into the same place (0.32). A
    string there ends the whole engine."""
    raw = body.get("vllm_xargs")
    if raw is None or bytes(raw) == b"null":
        return body
    extra = _DECODER.decode(raw)
    kept = {name: value for name, value in extra.items() if name not in _ENGINES_OWN}
    return {**body, "vllm_xargs": msgspec.Raw(_ENCODE(kept))}


def prefill_body(ask: Ask, handle: Handle | None) -> bytes:
    """Body of the prefill leg: one token, no stream, with decode's handle or none."""
    body = {name: raw for name, raw in ask.body.items() if name not in _NOT_FOR_PREFILL}
    body["max_tokens"] = _ONE
    if ask.surface == "chat":
        body["max_completion_tokens"] = _ONE
    body["return_token_ids"] = _TRUE
    params = _COLD if handle is None else {**handle, "do_remote_decode": True, "do_remote_prefill": False}
    body["kv_transfer_params"] = msgspec.Raw(_ENCODE(params))
    return _ENCODE(body)


def read_filled(data: bytes) -> Filled | None:
    """Read a prefill leg's reply; None if it holds no handle, or is no such reply."""
    try:
        reply = msgspec.json.decode(data, type=_PrefillReply)
        handle = _DECODER.decode(reply.kv_transfer_params)
    except (msgspec.DecodeError, ValueError):
        return None
    ids = bytes(reply.prompt_token_ids)
    if not ids.startswith(b"[") and len(reply.choices) == 1:
        ids = bytes(reply.choices[0].prompt_token_ids)
    lease = _value(handle, "remote_request_id")
    seal = seal_of({name: msgspec.json.decode(raw) for name, raw in handle.items() if name == "antiphon"})
    return Filled(
        handle,
        msgspec.Raw(ids) if ids.startswith(b"[") else None,
        lease if isinstance(lease, str) else None,
        seal,
    )


def decode_body(ask: Ask, filled: Filled | None) -> bytes:
    """Body of the decode leg: the client's, with prefill's handle untouched and its ids, or neither."""
    body = {name: raw for name, raw in ask.body.items() if name not in _OURS}
    if filled is not None:
        params = dict(filled.handle)
        if filled.token_ids is not None:
            params["prompt_token_ids"] = filled.token_ids
        body["kv_transfer_params"] = msgspec.Raw(_ENCODE(params))
    return _ENCODE(body)


def needs_stripping(data: bytes, token_ids: bool) -> bool:
    """Cheap search: may a reply or an event hold what its client must not, or did not ask to, see?"""
    return b'"kv_transfer_params"' in data or (not token_ids and _TOKEN_IDS.search(data) is not None)


def strip(data: bytes, token_ids: bool) -> tuple[bytes, Handle | None]:
    """A reply or an event's JSON without handle, and without token ids unless asked for; and the handle it
    held.

    Bytes come back as they were where nothing had to go.
    """
    if not needs_stripping(data, token_ids):
        return data, None
    try:
        reply = _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError):
        return data, None
    before = len(reply)
    raw = reply.pop("kv_transfer_params", None)
    handle = msgspec.json.decode(raw) if raw is not None else None
    changed = len(reply) != before
    if not token_ids:
        changed |= reply.pop("prompt_token_ids", None) is not None
        if "choices" in reply and _TOKEN_IDS.search(bytes(reply["choices"])):
            choices = msgspec.json.decode(reply["choices"], type=list[Body])
            for choice in choices:
                for name in ("token_ids", "prompt_token_ids"):
                    changed |= choice.pop(name, None) is not None
            reply["choices"] = msgspec.Raw(_ENCODE(choices))
    return (_ENCODE(reply) if changed else data), (handle if isinstance(handle, dict) else None)


def _value(body: Body, name: str) -> Any:
    raw = body.get(name)
    return None if raw is None else msgspec.json.decode(raw)


def _alone(surface: Surface, body: Body) -> Reason | None:
    for name in ("n", "best_of"):
        if _value(body, name) not in (None, 1):  # engines take "2" and 2.0 for 2
            return Reason.MULTIPLE
    if _value(body, "use_beam_search"):
        return Reason.BEAM
    if _value(body, "echo"):
        return Reason.ECHO
    if _value(body, "prompt_logprobs") is not None:
        return Reason.PROMPT_LOGPROBS
    if surface == "completions":
        return Reason.BATCH if _is_batch(body) else None
    return Reason.MEDIA if _has_media(body) else None


def _is_batch(body: Body) -> bool:
    prompt = bytes(body.get("prompt", b"")).lstrip()
    if not prompt.startswith(b"[") and "prompt_embeds" not in body:
        return False
    return "prompt_embeds" in body or prompt[1:].lstrip()[:1] in {b'"', b"[", b"{"}


def _has_media(body: Body) -> bool:
    """True when a message has a part that is not text. The search finds quoted words only, so prose cannot
    trip it."""
    messages = body.get("messages")
    if messages is None or not _names_media(bytes(messages)):
        return False
    try:
        parsed = msgspec.json.decode(messages, type=list[dict[str, Any]])
    except msgspec.DecodeError:
        return False
    parts = [part for message in parsed for part in _parts(message.get("content"))]
    return any(isinstance(part, dict) and _names_media(f'"{part.get("type")}"'.encode()) for part in parts)


def _names_media(data: bytes) -> bool:
    return any(name in data for name in _MEDIA)


def _parts(content: object) -> list[Any]:
    return content if isinstance(content, list) else []
