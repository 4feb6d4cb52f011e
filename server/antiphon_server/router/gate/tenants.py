"""Who calls: the tenant of a request, from its API key or from the gateway in front."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.errors import BadRequestError, UnauthorizedError
from antiphon_server.router.gate.identity import clean_id, header_text
from antiphon_server.router.gate.keys import UNLIMITED, Limits, digest_of, read_keys
from antiphon_server.router.gate.salt import default_secret, salt_for

FORWARDED = "x-antiphon-tenant"
CREDENTIALS = ("authorization", "x-api-key", FORWARDED)
"""Headers that say who calls. Sent twice, they say nothing."""
_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Tenant:
    """``name`` is part of every frontier's key; empty for callers without a credential where none is asked
    for. ``named``: by a key of ours or by a gateway, so it is one of few. ``salted``: its prefix caches are
    its own."""

    name: str
    limits: Limits = UNLIMITED
    named: bool = False
    salted: bool = False


class Tenants:
    """Finds tenants. Open while no key is configured: then a credential, hashed, is its own tenant."""

    def __init__(self, settings: RouterSettings) -> None:
        self.reload(settings)

    def reload(self, settings: RouterSettings) -> None:
        """Take other keys from the next request on; turns in flight go on.

        Raises:
            KeysError: nothing has changed.
        """
        inline = settings.api_keys.get_secret_value() if settings.api_keys is not None else None
        self._ring = read_keys(settings.keys_file, inline)
        self.closed = settings.keys_file is not None or bool(self._ring.tenants)
        self._forwarded = settings.trust_forwarded_tenant
        self._salt = settings.tenant_salt
        given, engine = settings.salt_secret, settings.engine_key
        self._secret = (
            given.get_secret_value().encode()
            if given is not None
            else default_secret(engine.get_secret_value() if engine is not None else None)
        )

    def of(self, headers: Mapping[str, str]) -> Tenant:
        """The tenant of a request. ``headers``: lower-case names.

        Raises:
            UnauthorizedError: keys are configured and none of them came.
        """
        name, named = (self._by_key(headers), True) if self.closed else (_by_credential(headers), False)
        if self._forwarded:
            told = clean_id(header_text(headers.get(FORWARDED)))
            if told is not None:
                name, named = told, True
        salted = self._salt == "always" or (named and self._salt == "auto")
        return Tenant(name, self._ring.limits.get(name, UNLIMITED) if named else UNLIMITED, named, salted)

    def conversations(self, name: str) -> int | None:
        """How many conversations of a tenant are kept at most; None: as the settings say."""
        return self._ring.limits.get(name, UNLIMITED).conversations

    def salt(self, tenant: Tenant, client_salt: object) -> str | None:
        """``cache_salt`` for the engines in place of the client's; None: leave the client's as it is, and the
        engines to judge it.

        Raises:
            BadRequestError: the client's is not text.
        """
        if not tenant.salted:
            return None
        if client_salt is not None and not isinstance(client_salt, str):
            raise BadRequestError("cache_salt is not a string: send a string, or none")
        return salt_for(tenant.name, client_salt, self._secret)

    def _by_key(self, headers: Mapping[str, str]) -> str:
        sent = [key for key in (_bearer(headers), header_text(headers.get("x-api-key"))) if key]
        for key in sent:
            # Looked up by digest: its time says nothing about the keys that exist.
            found = self._ring.tenants.get(digest_of(key))
            if found is not None:
                return found
        raise UnauthorizedError(
            "this API key is not known here: ask the operator for one"
            if sent
            else "no API key: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        )


def _bearer(headers: Mapping[str, str]) -> str | None:
    value = header_text(headers.get("authorization")) or ""
    return value[len(_SCHEME) :].strip() if value[: len(_SCHEME)].lower() == _SCHEME else None


def _by_credential(headers: Mapping[str, str]) -> str:
    credential = headers.get("authorization") or headers.get("x-api-key") or ""
    return hashlib.sha256(credential.encode("utf-8", "surrogatepass")).hexdigest()[:32] if credential else ""
