"""What the router itself answers when a turn cannot be served, in the shape of OpenAI's or Anthropic's API.

::

    RouterError                 status, type
    ├── BadRequestError         400  the body cannot be read
    ├── UnauthorizedError       401  no API key, or one that is not known
    ├── NotFoundError           404
    ├── RequestTimeoutError     408  it did not arrive in time
    ├── BodyTooLargeError       413
    ├── PathTooLongError        414
    ├── EncodedBodyError        415  compressed
    ├── OverloadedError         429  no room, nor room to wait; with Retry-After
    ├── HeadersTooLargeError    431
    ├── ConflictError           409  it is there already
    ├── UnavailableError        503  no engine of a role is up; with Retry-After
    │   └── DrainingError            the router is being stopped
    ├── EngineFailedError       502  an engine broke off
    │   └── KeyRefusedError          it refuses the router
    └── EngineSilentError       504  an engine kept silent
"""

from __future__ import annotations

import msgspec

from antiphon_server.router.legs.form import Surface


class RouterError(Exception):
    """``message`` is shown to the client: it names no address and no key."""

    status = 500
    kind = "server_error"
    headers: tuple[tuple[str, str], ...] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def body(self, *, anthropic: bool = False) -> bytes:
        """JSON of the reply."""
        return (anthropic_error_body if anthropic else error_body)(self.message, self.kind, self.status)

    def event(self, surface: Surface = "chat", number: int = 0) -> bytes:
        """The same as an event of a stream that has begun. ``number``: its place in the stream, where events
        are numbered."""
        if surface == "messages":
            return b"event: error\ndata: " + self.body(anthropic=True) + b"\n\n"
        if surface == "responses":
            return b"event: error\ndata: " + _responses_event(self.message, self.kind, number) + b"\n\n"
        return b"data: " + self.body() + b"\n\n"


class BadRequestError(RouterError):
    status = 400
    kind = "invalid_request_error"


class UnauthorizedError(RouterError):
    status = 401
    kind = "authentication_error"
    headers = (("www-authenticate", "Bearer"),)


class NotFoundError(RouterError):
    status = 404
    kind = "invalid_request_error"


class ConflictError(RouterError):
    status = 409
    kind = "invalid_request_error"


class RequestTimeoutError(RouterError):
    """Its client is slow or gone, so the connection is not kept."""

    status = 408
    kind = "request_timeout"
    headers = (("connection", "close"),)


class BodyTooLargeError(RouterError):
    status = 413
    kind = "invalid_request_error"


class PathTooLongError(RouterError):
    status = 414
    kind = "invalid_request_error"


class EncodedBodyError(RouterError):
    status = 415
    kind = "invalid_request_error"


class HeadersTooLargeError(RouterError):
    status = 431
    kind = "invalid_request_error"


class OverloadedError(RouterError):
    """``retry_after``: whole seconds."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.headers = (("retry-after", str(retry_after)),)


class UnavailableError(RouterError):
    status = 503
    kind = "service_unavailable"
    headers: tuple[tuple[str, str], ...] = (("retry-after", "2"),)


class DrainingError(UnavailableError):
    """Another router, or the next life of this one, takes it."""

    headers = (("retry-after", "1"), ("connection", "close"))


class EngineFailedError(RouterError):
    status = 502
    kind = "engine_failed"


class KeyRefusedError(EngineFailedError):
    """The client has no part in it, so it must not see the engine's 401."""

    def __init__(self, role: str) -> None:
        super().__init__(
            f"the {role} engine refuses the router's key: set ANTIPHON_ENGINE_KEY to the engine's"
        )


class EngineSilentError(RouterError):
    status = 504
    kind = "engine_timeout"


_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_body(message: str, kind: str, code: int) -> bytes:
    """``{"type": "error", "error": {...}}``."""
    word = _ANTHROPIC.get(code) or ("api_error" if code >= 500 else "invalid_request_error")
    return msgspec.json.encode({"type": "error", "error": {"type": word, "message": message}})


def _responses_event(message: str, kind: str, number: int) -> bytes:
    return msgspec.json.encode(
        {"type": "error", "code": kind, "message": message, "param": None, "sequence_number": number}
    )


def error_body(message: str, kind: str, code: int) -> bytes:
    """``{"error": {...}}``."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
