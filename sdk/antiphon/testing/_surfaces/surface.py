"""The surface that a path belongs to."""

from __future__ import annotations

from antiphon.testing._surfaces.chat import Chat
from antiphon.testing._surfaces.completions import Completions
from antiphon.testing._surfaces.messages import Messages
from antiphon.testing._surfaces.responses import Responses

Surface = Chat | Completions | Responses | Messages

_SURFACES: dict[str, Surface] = {
    "/chat/completions": Chat(),
    "/completions": Completions(),
    "/responses": Responses(),
    "/messages": Messages(),
}


def surface_of(path: str) -> Surface | None:
    """The surface of a model call. ``path``: without a query."""
    return next((found for ending, found in _SURFACES.items() if path.rstrip("/").endswith(ending)), None)
