"""A stream of decode's ends with its handle, and the lease of that handle ends when it is told to."""

from __future__ import annotations

from collections.abc import Iterator

from antiphon_server.doctor.finding import Finding
from antiphon_server.doctor.fleet import checks, words
from antiphon_server.doctor.fleet.pair import Pair
from antiphon_server.protocol import seal_of

TOKENS = 256
ANSWER = 8


def findings(pair: Pair) -> Iterator[Finding]:
    """Stream one turn, then release what it left.

    Raises:
        LegError: the stream or the release failed.
    """
    subject = f"decode {pair.decode}"
    handle = pair.streamed(words.log(TOKENS, pair.ids), words.fresh(), ANSWER)
    remedy = "start it with antiphon's middleware (antiphon engine), the same version everywhere"
    if handle is None:
        yield checks.STREAM_HANDLE.finding(subject, "its stream ends without a handle", remedy)
        return
    if seal_of(handle) is None:
        yield checks.STREAM_HANDLE.finding(subject, "its stream's handle carries no seal", remedy)
    if not pair.release(pair.decode, str(handle["remote_request_id"])):
        remedy = "start it with antiphon's worker extension (antiphon engine)"
        yield checks.RELEASED.finding(
            subject, "does not know the lease of a turn that has just ended", remedy
        )
