"""What leaves of a decode leg's reply, or of one event of its stream."""

from __future__ import annotations

import re

import msgspec

from antiphon_server.protocol import Handle
from antiphon_server.router.legs.form import ENGINES_OWN, Body

_DECODER = msgspec.json.Decoder(Body)
_ENCODE = msgspec.json.Encoder().encode
_TOKEN_IDS = re.compile(rb'"(?:prompt_)?token_ids"\s*:\s*\[')
_IDS = ("token_ids", "prompt_token_ids")
_NESTED = "response"
"""Events of the responses surface carry the whole reply in this field."""


def needs_stripping(data: bytes, token_ids: bool) -> bool:
    """Cheap search: may a reply or an event hold what its client must not, or did not ask to, see?"""
    return b'"kv_transfer_params"' in data or (
        not token_ids and b'token_ids"' in data and _TOKEN_IDS.search(data) is not None
    )


class CutOffError(ValueError):
    """A reply came and is none: no JSON object, a stream without its end."""


def check_whole(data: bytes) -> None:
    """See that a reply without a handle is one at all.

    Raises:
        CutOffError
    """
    try:
        _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CutOffError("its reply is cut off") from error


def strip_whole(data: bytes, token_ids: bool) -> tuple[bytes, Handle | None]:
    """:func:`strip` of a whole reply.

    Raises:
        CutOffError
    """
    body, handle = strip(data, token_ids)
    if handle is None:
        check_whole(body)
    return body, handle


def strip(data: bytes, token_ids: bool) -> tuple[bytes, Handle | None]:
    """A reply or an event's JSON without handle, and without token ids unless asked for; and the handle it
    held.

    Bytes come back as they were where nothing had to go.
    """
    if not needs_stripping(data, token_ids):
        return data, None
    try:
        reply = _DECODER.decode(data)
        inner = reply.get(_NESTED)
        if inner is not None and bytes(inner).startswith(b"{"):
            stripped, handle = strip(bytes(inner), token_ids)
            return _ENCODE({**reply, _NESTED: msgspec.Raw(stripped)}), handle
    except (msgspec.DecodeError, ValueError, RecursionError):
        return data, None
    before = len(reply)
    raw = reply.pop(ENGINES_OWN[0], None)
    handle = msgspec.json.decode(raw) if raw is not None else None
    for name in ENGINES_OWN[1:]:
        reply.pop(name, None)
    changed = len(reply) != before
    if not token_ids:
        changed |= _drop_ids(reply)
        if "choices" in reply and _TOKEN_IDS.search(bytes(reply["choices"])):
            choices = msgspec.json.decode(reply["choices"], type=list[Body])
            dropped = [_drop_ids(choice) for choice in choices]
            changed |= any(dropped)
            reply["choices"] = msgspec.Raw(_ENCODE(choices))
    return (_ENCODE(reply) if changed else data), (handle if isinstance(handle, dict) else None)


def _drop_ids(place: Body) -> bool:
    """Remove the ids, not the empty fields that engines always send."""
    found = [name for name in _IDS if name in place and bytes(place[name]).startswith(b"[")]
    for name in found:
        del place[name]
    return bool(found)
