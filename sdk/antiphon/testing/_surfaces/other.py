"""What is no model call: embeddings, models, errors."""

from __future__ import annotations

import hashlib
import json
import struct
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from antiphon.testing._surfaces.reply import Json, tokens


def embeddings(body: Mapping[str, Any], model: str) -> Json:
    """Four numbers for each input, the same for the same input."""
    given = body.get("input")
    inputs = given if isinstance(given, list) else [given]
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(each, body.get("encoding_format"))}
        for index, each in enumerate(inputs)
    ]
    count = sum(tokens(str(each)) for each in inputs)
    return {
        "object": "list",
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }


def _vector(given: Any, form: Any) -> list[float] | str:
    digest = hashlib.sha256(json.dumps(given).encode()).digest()
    vector = [byte / 255 for byte in digest[:4]]
    return b64encode(struct.pack("<4f", *vector)).decode() if form == "base64" else vector


def card(model: str) -> Json:
    """A model, as ``/models`` lists it."""
    return {"id": model, "object": "model", "created": 1, "owned_by": "antiphon"}


def error(message: str, status: int) -> Json:
    """An error in OpenAI's words."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}
