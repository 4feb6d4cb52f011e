"""What the router itself answers when a turn cannot be served, in the shape of the OpenAI API.

::

    RouterError                 status, type
    ├── BadRequestError         400  the body cannot be read
    ├── BodyTooLargeError       413
    ├── UnauthorizedError       401  no API key, or one that is not known
    ├── NotFoundError           404
    ├── UnavailableError        503  no engine of a role is up; with Retry-After
    ├── EngineFailedError       502  an engine broke off
    │   └── KeyRefusedError          it refuses the router
    └── EngineSilentError       504  an engine kept silent
"""

from __future__ import annotations

import msgspec


class RouterError(Exception):
    """``message`` is shown to the client: it names no address and no key."""

    status = 500
    kind = "server_error"
    headers: tuple[tuple[str, str], ...] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def body(self) -> bytes:
        """JSON of the reply."""
        return error_body(self.message, self.kind, self.status)

    def event(self) -> bytes:
        """The same as an event of a stream that has begun."""
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


class BodyTooLargeError(RouterError):
    status = 413
    kind = "invalid_request_error"


class UnavailableError(RouterError):
    status = 503
    kind = "service_unavailable"
    headers = (("retry-after", "2"),)


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


def error_body(message: str, kind: str, code: int) -> bytes:
    """``{"error": {...}}``."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
