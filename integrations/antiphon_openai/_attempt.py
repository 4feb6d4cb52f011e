"""One attempt at a call: what it is stamped with, and the note that it leaves for its reply."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai

from antiphon import Conversation, Router, stamp
from antiphon._binding import Binding
from antiphon._identity import turn_of_key
from antiphon._telemetry import announce

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

_log = logging.getLogger("antiphon")


@dataclass(frozen=True, slots=True)
class Attempt:
    """``turn_header``: where its turn id is. ``started``: when it began, in seconds."""

    conversation: Conversation
    turn_header: str | None
    started: float


class AttemptHeaders(dict[str, Any]):
    """Headers that know their attempt: they go wherever openai's options go, copies too, and no further."""

    __slots__ = ("attempt",)
    attempt: Attempt


def stamped(client: Any, binding: Binding, options: FinalRequestOptions, now: float) -> FinalRequestOptions:
    """The options with the stamp of the call's conversation. Mappings are replaced, never changed.

    ``now``: seconds, by the clock that the reply will be timed with. It leans on names that openai does not
    promise to keep: where one is gone, the call goes out as it is, and one warning says so.
    """
    try:
        return _stamped(client, binding, options, now)
    except Exception as error:
        _warn(f"{type(error).__name__}: {error}")
        return options


@functools.lru_cache(maxsize=16)
def _warn(error: str) -> None:
    """Once for each, so far as these are few."""
    _log.warning(
        "calls go out without their conversation, so nothing is reused: cannot stamp those of openai %s "
        "(%s); update antiphon, or go back to the openai that it worked with",
        openai.__version__,
        error,
    )


def _stamped(client: Any, binding: Binding, options: FinalRequestOptions, now: float) -> FinalRequestOptions:
    url = client._prepare_url(options.url)
    call = binding.call(options.method, str(url), url.host)
    if call is None:
        return options

    headers: Mapping[str, Any] = options.headers or {}
    sent = options.json_data if isinstance(options.json_data, Mapping) and not options.files else None
    extra: Mapping[str, Any] = options.extra_json or {}
    addition = stamp(
        call.conversation,
        turn=turn_of_key(options.idempotency_key or ""),
        wire=call.wire,
        headers=(*client._custom_headers, *headers),
        body=(*(sent or ()), *extra),
    )
    if call.ends:
        router = Router.of(
            call.api,
            client._build_headers(options),
            standing=client._custom_headers,
            transport=client._client,
            final_header=call.wire.final_header,
        )
        call.conversation.seen_by(router)
    carried = AttemptHeaders({**headers, **addition.headers})
    if addition.identifies:
        carried.attempt = Attempt(call.conversation, call.wire.turn_header, now)
        announce(call.conversation)
    options.headers = carried
    if sent is not None and addition.body:
        options.extra_json = {**extra, **addition.body}
    return options
