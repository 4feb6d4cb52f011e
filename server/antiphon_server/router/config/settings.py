"""What the router can be told. Seconds, bytes and counts, unless a field says otherwise.

A group of fields is a class; its docstring is the heading that flags and the guide show it under. Each field
is a flag (``--renew-interval``), an environment variable (``ANTIPHON_RENEW_INTERVAL``) and a key of the
configuration file (``renew_interval``), made from its type, default and ``description``.
"""

from __future__ import annotations

import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from antiphon_server.environment import PREFIX
from antiphon_server.router.config import agreements
from antiphon_server.router.plan.reasons import Path as TurnPath
from antiphon_server.router.store.store_url import MEMORY, check_store
from antiphon_server.router.upstream.upstream import Origin


class Engines(BaseModel):
    """Engines"""

    prefill: list[str] = Field(default_factory=list, description="URLs of prefill engines")
    decode: list[str] = Field(default_factory=list, description="URLs of decode engines")
    engine_key: SecretStr | None = Field(
        default=None, description="bearer key of the engines; never the client's"
    )
    connect_timeout: float = Field(default=5.0, gt=0, description="to open a connection to an engine")
    prefill_timeout: float = Field(
        default=600.0, gt=0, description="head of a prefill leg's reply; prefill is done then"
    )
    decode_timeout: float = Field(default=600.0, gt=0, description="head of a decode leg's reply")
    pull_grace: float = Field(
        default=30.0, ge=0, description="a decode leg's time to end its pull after the client has left"
    )
    idle_timeout: float = Field(
        default=300.0, gt=0, description="between two chunks of a reply, or for a client to take one"
    )
    keep_alive: float = Field(
        default=3.0, gt=0, description="idle life of a connection to an engine (vLLM closes at 5 s)"
    )
    probe_interval: float = Field(default=5.0, gt=0, description="between two probes of an engine")
    probe_timeout: float = Field(default=5.0, gt=0, description="for an engine's answer to a probe")


class Discovery(BaseModel):
    """Discovery in Kubernetes"""

    discover_prefill: str | None = Field(
        default=None, description="label selector of the prefill engines' EndpointSlices"
    )
    discover_decode: str | None = Field(
        default=None, description="label selector of the decode engines' EndpointSlices"
    )
    discover_namespace: str | None = Field(
        default=None, description="namespace of the slices; the router's own unless given"
    )
    discover_port: str | None = Field(
        default=None, description="name or number of the engines' port; the slice's only one unless given"
    )
    discover_scheme: Literal["http", "https"] = Field(
        default="http", description="how discovered engines are spoken to"
    )
    discover_api: str | None = Field(
        default=None, description="URL of the API server; the cluster's own unless given"
    )
    discover_account: Path = Field(
        default=Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        description="folder with the service account's token, ca.crt and namespace",
    )


class Planning(BaseModel):
    """Paths and attempts"""

    paths: list[Literal["cold", "reuse", "append"]] = Field(
        default=["cold", "reuse", "append"],
        min_length=1,
        description="that a turn may take; cold alone is plain P/D, without cold all that is kept is used",
    )
    calibrate: bool = Field(default=True, description="measure the engines when they come up")
    append_slowdown: float = Field(
        default=1.25, ge=1, description="factor by which appends may slow a decode engine's other streams"
    )
    append_stall: float = Field(
        default=0.5, gt=0, description="of a decode engine's time that appends may take at once from others"
    )
    attempts: int = Field(default=3, ge=1, description="at one turn, before its first byte")
    retry_pause: float = Field(default=0.2, ge=0, description="before another attempt at most; random")


class Keeping(BaseModel):
    """Kept KV"""

    conversations: int = Field(
        default=10_000, ge=1, description="conversations kept; the least valuable is released"
    )
    tenant_conversations: int = Field(
        default=10_000, ge=1, description="of one tenant; beyond it its own least valuable one is released"
    )
    keep: float = Field(default=480.0, gt=0, description="idle life of a conversation's KV on decode")
    keep_share: float = Field(
        default=0.5, gt=0, le=1, description="of a decode engine's KV that resting conversations may hold"
    )
    least_chance: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="of a conversation's return before keep is over, below which its lease is not renewed",
    )
    pressure_interval: float = Field(
        default=2.0, ge=0, description="between two looks at a decode engine's own KV usage; 0: none"
    )
    pressure_high: float = Field(
        default=0.9, gt=0, le=1, description="KV usage of a decode engine above which kept KV is given up"
    )
    pressure_low: float = Field(
        default=0.8, gt=0, le=1, description="KV usage to come down to then, and while requests wait there"
    )
    lease_ttl: float = Field(
        default=60.0, gt=0, description="asked for at each renewal; the engine may grant less"
    )
    renew_interval: float = Field(default=15.0, gt=0, description="between two renewals of a lease")
    lease_margin: float = Field(
        default=8.0, ge=0, description="a handle with less life left is not sent; prefill needs 5 s"
    )


class Sharing(BaseModel):
    """State shared by several routers"""

    store: str = Field(
        default=MEMORY,
        repr=False,
        description="memory, or redis://, rediss:// or unix:// of a Redis or Valkey that routers share",
    )
    store_prefix: str = Field(
        default="antiphon",
        min_length=1,
        description="of all keys in Redis; the same on all routers of a fleet",
    )
    store_timeout: float = Field(
        default=0.25, gt=0, description="for an answer of Redis; then local memory steps in until it is back"
    )
    release_on_stop: bool | None = Field(
        default=None,
        description="give up what is kept when the router stops; unset: not with Redis, where the other "
        "routers, or this one when it is back, go on with it",
    )

    @field_validator("store")
    @classmethod
    def _names_a_store(cls, value: str) -> str:
        return check_store(value)

    @field_validator("store_prefix")
    @classmethod
    def _is_no_tag(cls, value: str) -> str:
        if not value.isprintable() or set(value) & set("{} "):
            raise ValueError(f"store_prefix {value!r} has a space or brace: use letters, digits, : and -")
        return value


class Placing(BaseModel):
    """Placement and breakers"""

    known: int = Field(
        default=200_000, ge=1, description="conversations whose workers are remembered; some 400 bytes each"
    )
    responses: int = Field(
        default=50_000, ge=1, description="response ids remembered, for previous_response_id"
    )
    load_bound: float = Field(
        default=1.5,
        ge=1,
        description="a worker with more than this times the mean load, plus one leg, gets no further turn",
    )
    breaker_failures: int = Field(
        default=5, ge=1, description="failed legs in a row that shut an engine out for a while"
    )
    breaker_ratio: float = Field(
        default=0.5, gt=0, le=1, description="failed share of 20 legs or more that shuts an engine out"
    )
    breaker_window: float = Field(default=30.0, gt=0, description="for which failed legs count")
    breaker_pause: float = Field(
        default=2.0, gt=0, description="an engine is shut out for; doubles each time its trial leg fails"
    )
    breaker_longest: float = Field(default=60.0, gt=0, description="an engine is shut out for at most")
    pair_failures: int = Field(
        default=3, ge=1, description="failed transfers in a row that part a prefill and a decode worker"
    )


class Tenancy(BaseModel):
    """Tenants and keys"""

    keys_file: Path | None = Field(
        default=None, description="YAML list of tenants, the hashes of their API keys and their limits"
    )
    api_keys: SecretStr | None = Field(
        default=None, description="tenant=key,tenant2=key2: API keys without a file; hashed when read"
    )
    metrics_key: SecretStr | None = Field(
        default=None, description="bearer key that /metrics asks for; without it /metrics is open"
    )
    trust_forwarded_tenant: bool = Field(
        default=False,
        description="take the tenant from X-Antiphon-Tenant: only behind a gateway that sets or removes it",
    )
    tenant_salt: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="a cache_salt of its own for each tenant; auto: when keys or a gateway name tenants",
    )
    salt_secret: SecretStr | None = Field(
        default=None,
        description="what salts are derived from; unset: the engine key. Set it, the same on all routers, "
        "when tenants can reach the engines by another way",
    )


class Admitting(BaseModel):
    """Admission"""

    max_turns: int = Field(
        default=0, ge=0, description="turns served at once; 0: 1024 for each decode engine"
    )
    queue: int = Field(default=512, ge=0, description="turns that wait while max_turns are served; then 429")
    queue_timeout: float = Field(default=30.0, ge=0, description="a turn's longest wait for its start")
    tenant_turns: int = Field(
        default=0, ge=0, description="turns of one tenant at once, unless the keys file says; 0: no limit"
    )
    tenant_metrics: bool = Field(
        default=False, description="label turns in flight by tenant, for tenants that keys or a gateway name"
    )


class Limits(BaseModel):
    """Limits of a request"""

    max_headers: int = Field(default=128, ge=1, description="headers of a request")
    max_header_bytes: int = Field(default=65536, ge=1024, description="of all headers of a request together")
    max_path: int = Field(default=8192, ge=64, description="bytes of a request's path and query")
    head_timeout: float = Field(default=30.0, gt=0, description="for a request's headers to arrive")
    body_timeout: float = Field(default=120.0, gt=0, description="for a request's body to arrive")
    max_body: int = Field(default=64 * 1024 * 1024, gt=0, description="bytes of a client's request")
    max_reply: int = Field(
        default=256 * 1024 * 1024, gt=0, description="bytes of an engine's reply that is read whole"
    )


class Serving(BaseModel):
    """Serving"""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port to listen on; 0: any free one")
    tls_cert: Path | None = Field(default=None, description="certificate chain (PEM); TLS is off without")
    tls_key: Path | None = Field(default=None, description="private key of the certificate (PEM)")
    admin_key: SecretStr | None = Field(default=None, description="bearer key of /admin; off without")
    shutdown_grace: float = Field(
        default=30.0, ge=0, description="for turns in flight when the router is stopped"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least level that is logged"
    )
    turn_log: bool = Field(
        default=False, description="log a line for each turn: path, reason, tokens, TTFT; no words of clients"
    )


@cache
def _allowed(paths: tuple[str, ...]) -> frozenset[TurnPath]:
    return frozenset(map(TurnPath, paths))


class RouterSettings(
    Engines, Discovery, Placing, Planning, Keeping, Sharing, Tenancy, Admitting, Limits, Serving, BaseSettings
):
    """All groups. Also reads the environment; ``config.load`` reads a file too and explains every fault."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="ignore", frozen=True, env_ignore_empty=True, enable_decoding=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _words(cls, value: Any, info: Any) -> Any:
        """A list or mapping given as one text: JSON, or items with commas between."""
        return split(value, cls.model_fields[info.field_name]) if isinstance(value, str) else value

    @field_validator("prefill", "decode")
    @classmethod
    def _origins(cls, urls: list[str]) -> list[str]:
        for url in urls:
            Origin.parse(url)
        if len(set(urls)) != len(urls):
            raise ValueError(f"an engine is named twice in {urls}: name each once")
        return [url.rstrip("/") for url in urls]

    @property
    def allowed(self) -> frozenset[TurnPath]:
        """``paths`` as a plan wants them."""
        return _allowed(tuple(self.paths))

    @property
    def keeps(self) -> bool:
        """Is decode's KV kept between turns?"""
        return self.allowed != {TurnPath.COLD}

    @model_validator(mode="after")
    def _agrees(self) -> RouterSettings:
        if problems := agreements.problems(self):
            raise ValueError("; ".join(problems))
        return self


def split(text: str, field: FieldInfo) -> Any:
    """A text as the field wants it; other texts stay as they are, for pydantic to judge."""
    annotations = [field.annotation]
    if get_origin(field.annotation) in {Union, types.UnionType}:
        annotations = list(get_args(field.annotation))
    kinds = {get_origin(annotation) or annotation for annotation in annotations}
    if not kinds & {list, tuple, set, frozenset, dict} or str in kinds:
        return text
    if text.lstrip().startswith(("[", "{")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ValueError(f"begins like JSON but is not: {error}") from None
    return text if dict in kinds else [item for item in map(str.strip, text.split(",")) if item]
