"""API keys: made, hashed at rest, and read from a file and from settings.

A key is high-entropy text, so its SHA-256 cannot be turned back and a look-up by digest tells nothing about
any other key by its time.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from antiphon_server.strict_yaml import YamlError, read_yaml

HASH_PREFIX = "sha256:"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_TENANT = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"


class KeysError(ValueError):
    """Keys that cannot be used. The message says which entry and why; never a key."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may hold: turns at once, conversations kept. None: as the settings say."""

    concurrency: int | None = None
    conversations: int | None = None


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class KeyRing:
    """``tenants``: by digest of a key. ``limits``: of tenants whose entry sets some."""

    tenants: Mapping[bytes, str]
    limits: Mapping[str, Limits]


class _Limits(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    concurrency: Annotated[int | None, Field(ge=1)] = None
    conversations: Annotated[int | None, Field(ge=1)] = None


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tenant: Annotated[str, Field(pattern=_TENANT)]
    hash: str | None = None
    hashes: list[str] = []
    limits: _Limits = _Limits()

    @field_validator("hash", "hashes")
    @classmethod
    def _hashed(cls, value: str | list[str] | None) -> str | list[str] | None:
        for found in [value] if isinstance(value, str) else value or []:
            if not _HASH.fullmatch(found):
                raise ValueError(
                    "not sha256:<64 hex digits>: keys are never stored plain, `antiphon key TENANT` prints "
                    "a fresh one with its hash"
                )
        return value


_FILE = TypeAdapter(list[_Entry])


def digest_of(key: str) -> bytes:
    """What a key is looked up by."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def hash_of(key: str) -> str:
    """What a keys file holds of a key."""
    return HASH_PREFIX + digest_of(key).hex()


def fresh_key() -> str:
    """256 random bits."""
    return f"ak-{secrets.token_urlsafe(32)}"


def check_tenant(name: str) -> str:
    """The name itself.

    Raises:
        KeysError: it cannot name a tenant.
    """
    if not re.match(_TENANT, name):
        raise KeysError(f"tenant {name!r} is not 1 to 64 of A-Z a-z 0-9 . _ @ -, first a letter or digit")
    return name


def read_keys(file: Path | None, inline: str | None) -> KeyRing:
    """Keys of a YAML file and of ``tenant=key,tenant2=key2``. A tenant may be in both, and have several keys.

    Raises:
        KeysError
    """
    tenants: dict[bytes, str] = {}
    limits: dict[str, Limits] = {}
    for entry in _entries(file) if file else ():
        if entry.tenant in limits:
            raise KeysError(f"{file}: tenant {entry.tenant!r} is named twice: list its keys under `hashes`")
        limits[entry.tenant] = Limits(entry.limits.concurrency, entry.limits.conversations)
        for hashed in [entry.hash, *entry.hashes]:
            if hashed is not None:
                _add(tenants, bytes.fromhex(hashed.removeprefix(HASH_PREFIX)), entry.tenant)
    for number, pair in enumerate((inline or "").split(","), 1):
        if not pair.strip():
            continue
        name, separator, key = (part.strip() for part in pair.partition("="))
        if not separator or not key:
            # What stands there may be a key alone, so it is not shown.
            raise KeysError(
                f"ANTIPHON_API_KEYS: part {number} is not tenant=key: name the tenant of each key"
            )
        _add(tenants, digest_of(key), check_tenant(name))
    return KeyRing(tenants, limits)


def _add(tenants: dict[bytes, str], digest: bytes, tenant: str) -> None:
    other = tenants.setdefault(digest, tenant)
    if other != tenant:
        raise KeysError(f"tenants {other!r} and {tenant!r} have the same key: give each its own")


def _entries(file: Path) -> list[_Entry]:
    try:
        content = read_yaml(file)
    except YamlError as error:
        # Without the problem: it may quote a key.
        raise KeysError(f"keys file {file} {error.cause}{error.place}: {error.remedy}") from None
    try:
        return _FILE.validate_python(content if content is not None else [])
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'top'}: {_said(problem['msg'])}"
            for problem in error.errors(include_input=False, include_url=False)
        )
        raise KeysError(
            f"keys file {file}: {problems} (a list of entries {{tenant, hash or hashes, "
            "limits: {concurrency, conversations}})"
        ) from None


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")
