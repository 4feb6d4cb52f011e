"""Requests that ask to go on in another protocol, such as those of Java's HTTP client and ``curl --http2``:
served as the HTTP/1.1 that they are, which RFC 9110, 7.8 leaves to the server."""

from __future__ import annotations

from collections.abc import Iterable


def plain_head(method: bytes, target: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of such a request, without its wish. ``headers``: as parsed, names in lower case."""
    lines = [b"%b %b HTTP/%b" % (method, target, version.encode())]
    lines.extend(b"%b: %b" % header for header in headers if header[0] != b"upgrade")
    return b"\r\n".join([*lines, b"", b""])
