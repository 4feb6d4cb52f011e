"""Under which names a conversation travels with a model call."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from antiphon._errors import WireError

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Names of the body field and the headers; None leaves one out.

    ``ends``: the server is one of ours, to be told of a conversation's end with
    ``DELETE {base_url}/conversations/{id}``. Presets: ``Wire.default`` (an Antiphon router),
    ``Wire.headers_only`` (any server, strict ones included), ``Wire.dynamo`` (Dynamo's headers).

    Raises:
        WireError: a header's name is not one.
    """

    conversation_field: str | None = None
    conversation_header: str | None = None
    parent_header: str | None = None
    turn_header: str | None = None
    final_header: str | None = None
    ends: bool = False

    default: ClassVar[Wire]
    headers_only: ClassVar[Wire]
    dynamo: ClassVar[Wire]

    def __post_init__(self) -> None:
        for name in (self.conversation_header, self.parent_header, self.turn_header, self.final_header):
            if name is not None and not _HEADER_NAME.fullmatch(name):
                raise WireError(f"{name!r} cannot be the name of an HTTP header: use letters, digits and '-'")


Wire.headers_only = Wire(
    conversation_header="X-Session-ID", parent_header="X-Parent-Session-ID", turn_header="X-Turn-ID"
)
Wire.default = Wire(
    conversation_field="conversation_id",
    conversation_header="X-Session-ID",
    parent_header="X-Parent-Session-ID",
    turn_header="X-Turn-ID",
    final_header="X-Session-Final",
    ends=True,
)
Wire.dynamo = Wire(
    conversation_header="X-Dynamo-Session-ID",
    parent_header="X-Dynamo-Parent-Session-ID",
    turn_header="X-Turn-ID",
)

_PRESETS = {"default": Wire.default, "headers_only": Wire.headers_only, "dynamo": Wire.dynamo}


def wire_of(wire: Wire | str) -> Wire:
    """The wire itself, or the preset of that name.

    Raises:
        WireError: no preset has this name.
    """
    if isinstance(wire, Wire):
        return wire
    try:
        return _PRESETS[wire]
    except (KeyError, TypeError):
        known = ", ".join(sorted(_PRESETS))
        raise WireError(f"there is no wire {wire!r}: use one of {known}, or a Wire of your own") from None
