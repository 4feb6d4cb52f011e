"""Which requests are model calls, and whose server they go to. Pure."""

from __future__ import annotations

import re

# Azure's clients put the deployment into the path of some calls; the API's root is above it.
_MODEL_CALL = re.compile(r"(?:/deployments/[^/]+)?/(?:chat/completions|completions|responses|messages)/?$")
_ASSISTANTS_MESSAGES = re.compile(r"/threads/[^/]+/messages/?$")

_VENDORS = (
    "api.openai.com",
    "openai.azure.com",
    "cognitiveservices.azure.com",
    "services.ai.azure.com",
    "api.anthropic.com",
    "api.aws",
    "openrouter.ai",
    "api.deepseek.com",
    "api.fireworks.ai",
    "api.groq.com",
    "api.mistral.ai",
    "api.together.xyz",
    "api.x.ai",
    "generativelanguage.googleapis.com",
)


def api_of_model_call(method: str, url: str) -> str | None:
    """Base URL of the API that a model call goes to; None for every other request."""
    if method.lower() != "post":
        return None
    address = url.partition("?")[0]
    found = _MODEL_CALL.search(address)
    if found is None or _ASSISTANTS_MESSAGES.search(address):
        return None
    return address[: found.start()]


def is_vendor(host: str) -> bool:
    """True for the hosts of public model vendors: not a router, and strict about unknown body fields."""
    host = host.lower().rstrip(".")
    return any(host == vendor or host.endswith("." + vendor) for vendor in _VENDORS)
