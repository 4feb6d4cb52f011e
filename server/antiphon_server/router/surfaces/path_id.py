"""A conversation's id in a path: the same one that a header or a body names."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request

from antiphon_server.router.errors import NotFoundError
from antiphon_server.router.gate.identity import clean_id, header_text


class _Anything(Convertor[str]):
    """Starlette's ``path`` ends at a line break, which an id may hold."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("conversation", _Anything())

CONVERSATION_PATH = "/v1/conversations/{id:conversation}"
_PREFIX = b"/v1/conversations/"


def conversation_in(request: Request) -> str:
    """Read from the bytes that the client sent: what servers make of bytes that are not UTF-8 would let two
    ids be one.

    Raises:
        NotFoundError: nothing is there.
    """
    raw: bytes = request.scope["raw_path"].partition(_PREFIX)[2]
    conversation = clean_id(header_text(unquote_to_bytes(raw).decode("latin-1")))
    if conversation is None:
        raise NotFoundError("no conversation id in the path: use /v1/conversations/{id}")
    return conversation
