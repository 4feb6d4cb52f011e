"""The bodies of a turn's legs, and what prefill's reply holds."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from antiphon_server.protocol import Handle, Seal, seal_of
from antiphon_server.router.legs.ask import Ask
from antiphon_server.router.legs.form import OURS, Body, value
from antiphon_server.router.legs.surfaces import FORMS

_DECODER = msgspec.json.Decoder(Body)
_ENCODE = msgspec.json.Encoder().encode
_ONE = msgspec.Raw(b"1")
_COLD: Handle = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_STRAIGHT: Handle = {"do_remote_decode": False, "do_remote_prefill": False}


class _Choice(msgspec.Struct):
    prompt_token_ids: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct):
    tokens: msgspec.Raw = msgspec.Raw()


class _Usage(msgspec.Struct):
    """Length of the prompt, by its two names."""

    prompt_tokens: int | None = None
    input_tokens: int | None = None


class _PrefillReply(msgspec.Struct):
    """Where a surface puts the prompt's ids: completions in the choice, responses in the first message,
    ``/v1/messages`` nowhere."""

    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    choices: list[_Choice] = []
    input_messages: list[_Message] | None = None
    usage: _Usage | None = None

    def tokens(self, ids: msgspec.Raw | None) -> int:
        """Length of the prompt, 0 without its ids: as the engine says, as counting many ids takes long."""
        if ids is None:
            return 0
        said = self.usage and (self.usage.prompt_tokens or self.usage.input_tokens)
        return said or _count(ids)


@dataclass(frozen=True, slots=True)
class Filled:
    """What a prefill leg returned: its handle as raw JSON, the prompt's ids as raw JSON and their number, and
    the handle's parts that the router reads."""

    handle: Body
    token_ids: msgspec.Raw | None
    tokens: int
    lease: str | None
    seal: Seal | None

    @property
    def remote_host(self) -> object:
        """Where decode finds the KV."""
        return value(self.handle, "remote_host")


def prefill_body(ask: Ask, handle: Handle | None) -> bytes:
    """Body of the prefill leg: one token, no stream, with decode's handle or none."""
    form = FORMS[ask.surface]
    body = {name: raw for name, raw in ask.body.items() if name not in OURS and name not in form.answer_only}
    for name, test in form.answer_only_if.items():
        if name in body and test(body[name]):
            del body[name]
    body |= dict.fromkeys(form.limits, _ONE)
    body |= form.prefill
    params = _COLD if handle is None else {**handle, "do_remote_decode": True, "do_remote_prefill": False}
    return _ENCODE({**body, "kv_transfer_params": params})


def read_filled(data: bytes) -> Filled | None:
    """Read a prefill leg's reply; None if it holds no handle, or is no such reply."""
    try:
        reply = msgspec.json.decode(data, type=_PrefillReply)
        handle = _DECODER.decode(reply.kv_transfer_params)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    lease = value(handle, "remote_request_id")
    seal = seal_of({name: msgspec.json.decode(raw) for name, raw in handle.items() if name == "antiphon"})
    ids = _token_ids(reply)
    return Filled(handle, ids, reply.tokens(ids), lease if isinstance(lease, str) else None, seal)


def decode_body(ask: Ask, filled: Filled | None) -> bytes:
    """Body of the decode leg: the client's, with prefill's handle untouched and its ids, or neither."""
    if filled is None:
        return _ENCODE(_forwarded(ask))
    params = dict(filled.handle)
    if filled.token_ids is not None:
        params["prompt_token_ids"] = filled.token_ids
    return _ENCODE({**_forwarded(ask), "kv_transfer_params": params})


def append_body(ask: Ask) -> bytes:
    """Body of a decode leg straight from the router: decode returns a handle, although nothing was handed
    over."""
    return _ENCODE({**_forwarded(ask), "kv_transfer_params": _STRAIGHT})


def _forwarded(ask: Ask) -> Body:
    body = {name: raw for name, raw in ask.body.items() if name not in OURS}
    if ask.response_id is not None:
        body["request_id"] = msgspec.Raw(_ENCODE(ask.response_id))
    return body


def _token_ids(reply: _PrefillReply) -> msgspec.Raw | None:
    found = [reply.prompt_token_ids]
    if len(reply.choices) == 1:
        found.append(reply.choices[0].prompt_token_ids)
    if reply.input_messages is not None and len(reply.input_messages) == 1:
        found.append(reply.input_messages[0].tokens)
    return next((ids for ids in found if bytes(memoryview(ids)[:1]) == b"["), None)


def _count(ids: msgspec.Raw) -> int:
    """Length of a JSON array of numbers, without making them objects."""
    raw = bytes(ids).strip()
    return raw.count(b",") + 1 if len(raw) > 2 else 0
