"""What the router can be told. Environment variables carry the prefix ``ANTIPHON_``; lists are JSON."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from antiphon_server.router.upstream import Origin


class RouterSettings(BaseSettings):
    """Seconds, bytes and counts, unless a field says otherwise."""

    model_config = SettingsConfigDict(env_prefix="ANTIPHON_", extra="ignore", frozen=True)

    prefill: list[str] = Field(default_factory=list, description="URLs of prefill engines")
    decode: list[str] = Field(default_factory=list, description="URLs of decode engines")
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    engine_key: SecretStr | None = Field(
        default=None, description="bearer key of the engines; never the client's"
    )
    reuse: bool = Field(default=True, description="off: plain P/D, nothing is kept")

    connect_timeout: float = Field(default=5.0, gt=0)
    prefill_timeout: float = Field(
        default=600.0, gt=0, description="head of a prefill leg's reply; prefill is done then"
    )
    decode_timeout: float = Field(default=600.0, gt=0, description="head of a decode leg's reply")
    pull_grace: float = Field(
        default=30.0, ge=0, description="a decode leg's time to end its pull after the client has left"
    )
    idle_timeout: float = Field(default=300.0, gt=0, description="between two chunks of a reply")
    keep_alive: float = Field(
        default=3.0, gt=0, description="idle life of a connection to an engine (vLLM closes at 5 s)"
    )
    probe_interval: float = Field(default=5.0, gt=0)
    probe_timeout: float = Field(default=5.0, gt=0)
    shutdown_grace: float = Field(
        default=30.0, ge=0, description="for turns in flight when the router is stopped"
    )

    conversations: int = Field(
        default=10_000, ge=1, description="conversations kept; the least recent is released"
    )
    keep: float = Field(default=480.0, gt=0, description="idle life of a conversation's KV on decode")
    keep_share: float = Field(
        default=0.5, gt=0, le=1, description="of a decode engine's KV that resting conversations may hold"
    )
    lease_ttl: float = Field(
        default=60.0, gt=0, description="asked for at each renewal; the engine may grant less"
    )
    renew_interval: float = Field(default=15.0, gt=0)
    lease_margin: float = Field(
        default=8.0, ge=0, description="a handle with less life left is not sent; prefill needs 5 s"
    )

    max_body: int = Field(default=64 * 1024 * 1024, gt=0)
    max_reply: int = Field(default=256 * 1024 * 1024, gt=0)

    @field_validator("prefill", "decode")
    @classmethod
    def _origins(cls, urls: list[str]) -> list[str]:
        for url in urls:
            Origin.parse(url)
        if len(set(urls)) != len(urls):
            raise ValueError(f"an engine is named twice in {urls}: name each once")
        return [url.rstrip("/") for url in urls]

    @model_validator(mode="after")
    def _renews_in_time(self) -> RouterSettings:
        if self.renew_interval + self.lease_margin >= self.lease_ttl:
            raise ValueError(
                f"renew_interval {self.renew_interval:g} + lease_margin {self.lease_margin:g} must stay "
                f"below lease_ttl {self.lease_ttl:g}, or leases end between two renewals"
            )
        return self
