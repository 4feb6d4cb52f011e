"""A client's request, read once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from antiphon_server.router.gate.identity import BODY_FIELDS
from antiphon_server.router.legs.form import ENGINES_OWN, Body, Form, Surface, value
from antiphon_server.router.legs.surfaces import FORMS
from antiphon_server.router.plan.reasons import Reason

_DECODER = msgspec.json.Decoder(Body)
_ENCODE = msgspec.json.Encoder().encode


class MalformedBodyError(ValueError):
    """The body is not a JSON object."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A client's request. ``alone``: why no hand-over can carry it, so that decode has to serve it by
    itself. ``named``: the few fields from which an identity is read. ``answer_limit``: the most tokens it may
    be answered with, None if it does not say.

    Of the responses surface: ``previous``, the response that it follows; ``response_id``, the id that its own
    is to have.
    """

    surface: Surface
    body: Body
    stream: bool
    token_ids: bool
    alone: Reason | None
    named: dict[str, Any]
    answer_limit: int | None = None
    previous: str | None = None
    response_id: str | None = None


def read_ask(surface: Surface, data: bytes, *, salt: str | None = None, text_only: bool = False) -> Ask:
    """Parse a client's body. ``salt``: see :func:`salted`. ``text_only``: no engine takes anything but text,
    so that a long history need not be searched for other parts.

    Raises:
        MalformedBodyError: see there.
    """
    form = FORMS[surface]
    tests = form.alone if form.media is None or text_only else (*form.alone, form.media)
    try:
        body = _sanitised(_DECODER.decode(data))
        previous = value(body, "previous_response_id") if surface == "responses" else None
        ask = Ask(
            surface,
            body,
            stream=value(body, "stream") is True,
            token_ids=value(body, "return_token_ids") is True,
            alone=next((reason for test in tests if (reason := test(body)) is not None), None),
            named={name: value(body, name) for name in BODY_FIELDS if name in body},
            answer_limit=_limit(form, body),
            previous=previous if isinstance(previous, str) else None,
        )
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise MalformedBodyError(f"request body is not a JSON object that can be read: {error}") from error
    return ask if salt is None else salted(ask, salt)


def salted(ask: Ask, salt: str) -> Ask:
    """The same request with another ``cache_salt``, on all its legs: prefix caches are shared by what has the
    same. ``named`` keeps the client's."""
    return replace(ask, body={**ask.body, "cache_salt": msgspec.Raw(_ENCODE(salt))})


def _sanitised(body: Body) -> Body:
    """Without the engines' own fields in ``vllm_xargs``, which vLLM merges into the same place (0.32). A
    string there ends the whole engine."""
    raw = body.get("vllm_xargs")
    if raw is None or bytes(raw) == b"null":
        return body
    extra = _DECODER.decode(raw)
    kept = {name: item for name, item in extra.items() if name not in ENGINES_OWN}
    return {**body, "vllm_xargs": msgspec.Raw(_ENCODE(kept))}


def _limit(form: Form, body: Body) -> int | None:
    for name in form.limits:
        number = value(body, name)
        if isinstance(number, int) and not isinstance(number, bool) and number > 0:
            return number
    return form.limit
