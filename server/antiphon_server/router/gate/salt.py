"""Cache salts: KV that one tenant computed is never found by another in an engine's prefix cache.

A hit in a shared prefix cache is faster than a miss, so it tells that somebody else sent the same words.
Pure.
"""

from __future__ import annotations

import hashlib
import hmac

_LENGTH = 32
"""Hex digits: 128 bits."""


def salt_for(tenant: str, client_salt: str | None, secret: bytes) -> str:
    """``cache_salt`` of a tenant's request. The same for the same tenant and ``client_salt`` on every router
    that has the secret, so prefix caches live on; another for any other tenant, whatever salt it sends."""
    name = tenant.encode("utf-8", "surrogatepass")
    own = (client_salt or "").encode("utf-8", "surrogatepass")
    message = len(name).to_bytes(8, "big") + name + own
    return hmac.new(secret, message, hashlib.sha256).hexdigest()[:_LENGTH]


def default_secret(engine_key: str | None) -> bytes:
    """A secret that routers of one fleet share without being told, and that outlives them: they all have the
    engines' key."""
    return hashlib.sha256(b"antiphon cache salt\0" + (engine_key or "").encode()).digest()
